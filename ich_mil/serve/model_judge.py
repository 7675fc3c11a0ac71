"""The judge of `ich-mil serve`: a trained model.

In: the folder of a run. Out: a `JudgeFactory`. The model's libraries are imported in the judging process
alone; the node itself stays small.
"""

from dataclasses import dataclass
from pathlib import Path

from ich_mil.serve.judging import Judge


@dataclass(frozen=True)
class ModelJudge:
    """Makes the judge in the process it is called in.

    Attributes:
        model: folder of a run.
        triage: thresholds to decide by; None decides by the interval.
        contrast_words: of the site.
    """

    model: Path
    triage: Path | None
    contrast_words: Path | None = None

    def __call__(self) -> Judge:
        """Load the model; what comes back writes all of a study into a folder and names its DICOM results."""
        from ich_mil.pipeline import pages, predict

        predictor = predict.Predictor(self.model, self.triage, self.contrast_words)

        def study(root: Path, out: Path, /) -> list[Path]:
            results, prepared = predictor(root, out)
            return pages.show_predictions(results, prepared, out, pages.Shown(dicom=True))

        return study
