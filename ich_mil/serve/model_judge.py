"""Judge of `ich-mil serve`: a trained model.

In: the folder of a run. Out: a `JudgeFactory`. The model's libraries are imported in the judging process
only, which keeps the node small.
"""

from dataclasses import dataclass
from pathlib import Path

from ich_mil.serve.judging import Judge


@dataclass(frozen=True)
class ModelJudge:
    """Factory that loads the model in the process in which it is called.

    Attributes:
        model: folder of a run.
        triage: file of triage thresholds; None decides by the 95 % interval.
        contrast_words: contrast word table of the site (CSV); None: the built-in table only.
    """

    model: Path
    triage: Path | None
    contrast_words: Path | None = None

    def __call__(self) -> Judge:
        """Load the model; returns a judge that writes all results of a study and returns its DICOM files."""
        from ich_mil.commands.pages import Shown
        from ich_mil.commands.predict import Predictor

        predictor = Predictor(self.model, self.triage, self.contrast_words)

        def study(root: Path, out: Path, /) -> list[Path]:
            return predictor(root, out, shown=Shown(dicom=True))[-1]

        return study
