"""Study page: result, main slices and slice viewer of one scan, in one HTML file that needs no network.

DICOM texts, such as names, file names and the details of the ledger, are left out unless `texts` are given.
Summary, strip and top slices work without a script and print on one page; the viewer needs the page's own
script (`templates/viewer.js`).

Shapes: n slices of H, W pixels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ich_mil.heads.counterfactual import slice_runs
from ich_mil.ledger import MARK, Code, decision_words, problems, routine, stated
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Provenance, ScanPrediction, SliceResult
from ich_mil.pages.dicom_words import in_words, title_of
from ich_mil.pages.page import embedded, interval, percent, render
from ich_mil.pages.pictures import FAINT, WINDOWS, Overlay, overlay, overview, slice_pictures
from ich_mil.pages.strip import make_strip
from ich_mil.pages.words import drivers, extra_names, kinds, numbers, unlike, why_look
from ich_mil.study.geometry.planes import Edges
from ich_mil.study.head_box import HeadBox, head_box

EVEN = 0.1
"""Largest relative deviation of slice distances from their median at which overviews are shown."""
TOP_SLICES = 4
"""Number of slices shown as pictures without the viewer, and in print."""
MAX_LEDGER = 500
"""Largest number of ledger lines on the page; `predictions.json` contains all lines."""
PROBLEMS_ON_PAPER = 5
"""Largest number of input problems in print; the screen shows all of them."""
OVERLAYS = {"mean": "location", "std": "uncertainty"}
"""Name on the page of each attribute of `ScanMaps`."""
SIDES = {"R": "right", "L": "left", "A": "front", "P": "back", "H": "head", "F": "feet"}
"""Sides of the patient by the letter at the edge of a picture (DICOM PS3.3 C.7.6.1.1.1)."""


class Neighbours(NamedTuple):
    """Relative addresses of the worklist and of the studies before and after one; empty: there is none."""

    worklist: str
    previous: str = ""
    next: str = ""


def render_study(
    scan: ScanPrediction,
    model: Provenance,
    decided_by: str,
    hu: np.ndarray,
    maps: ScanMaps | None,
    *,
    edges: Sequence[Edges | None] = (),
    texts: Mapping[str, str] = {},
    spacing_mm: tuple[float, float] | None = None,
    run_link: str = "",
    neighbours: Neighbours | None = None,
) -> str:
    """Render the study page as one HTML document.

    Args:
        scan: prediction of the scan.
        model: provenance of the model.
        decided_by: description of the decision rule behind `scan.decision`.
        hu: (n, H, W) int16 HU, lowest slice first.
        maps: heatmaps of some slices, if any.
        edges: sides of the patient at the edges of each slice's picture; None or empty marks none.
        texts: DICOM texts to show, such as 'PatientName', with arbitrary content.
        spacing_mm: distance of the rows and of the columns of a slice, mm; None hides the overviews.
        run_link: relative address of the run's page, if any.
        neighbours: relative addresses of the worklist and its neighbouring studies, if any.

    Raises:
        ValueError: pictures or edges do not fit the slices, or `run_link` is not relative.
    """
    edges = edges or [None] * len(scan.slices)
    if not len(hu) == len(scan.slices) == len(edges):
        raise ValueError(f"{len(hu)} pictures and edges of {len(edges)} for {len(scan.slices)} slices")
    pictures, box, codes = slice_pictures(hu), head_box(hu), {entry.code for entry in scan.ledger}
    planes = _overviews(scan, hu, box, spacing_mm)
    overlays = {} if maps is None else {of: overlay(maps, of, hu.shape[1:]) for of in OVERLAYS}
    mapped = [] if maps is None else maps.slices.tolist()
    likely = sorted(
        scan.slices, key=lambda slice_: (slice_.slice not in mapped, -slice_.probability, slice_.slice)
    )
    shown = sorted(likely[:TOP_SLICES], key=lambda slice_: slice_.slice)
    return render(
        "study.html.j2",
        script="viewer.js",
        scan=scan,
        model=model,
        decided_by=decided_by,
        title=title_of(scan, texts),
        texts=in_words(texts),
        run_link=run_link,
        neighbours=neighbours,
        planes=planes,
        middle=_overview_sides(edges[len(edges) // 2]),
        tilted=Code.TILTED in codes,
        result=decision_words(decided_by)[scan.decision],
        mark=MARK[scan.decision],
        why=why_look(scan, decided_by),
        drivers=drivers(scan),
        problems=problems(scan.ledger),
        unlike=unlike(scan),
        extras=_extras(scan),
        kinds=kinds(scan),
        routine=routine(scan.ledger),
        ledger=stated(scan.ledger),
        max_ledger=MAX_LEDGER,
        on_paper=PROBLEMS_ON_PAPER,
        strip=make_strip(scan, mapped),
        windows=WINDOWS,
        overlays={OVERLAYS[of]: heatmaps for of, heatmaps in overlays.items()},
        faint=FAINT,
        mapped=_ranges(mapped, len(scan.slices)),
        turned=Code.FLIPPED in codes,
        sides=_sides(edges),
        top=[_top(slice_, pictures, overlays, edges) for slice_ in shown],
        start=max(likely[:TOP_SLICES], key=lambda slice_: slice_.probability).slice,
        labelled=any(slice_.label is not None for slice_ in scan.slices),
        rows=[_values(slice_) for slice_ in scan.slices],
        size=hu.shape[:0:-1],
        data=embedded(
            {
                "pictures": pictures,
                "edges": [of_slice and of_slice._asdict() for of_slice in edges],
                "overlays": {OVERLAYS[of]: heatmaps.pictures for of, heatmaps in overlays.items()},
                "clear": {OVERLAYS[of]: heatmaps.clear for of, heatmaps in overlays.items()},
                "faint": f": no place reaches {percent(FAINT)}",
                "slices": [_values(slice_) for slice_ in scan.slices],
                "runs": [[run.first, run.last] for run in scan.runs],
                "windows": WINDOWS,
                "box": [
                    box.left / hu.shape[2],
                    box.top / hu.shape[1],
                    box.right / hu.shape[2],
                    box.bottom / hu.shape[1],
                ],
            }
        ),
    )


def _extras(scan: ScanPrediction) -> list[dict[str, str]]:
    return [
        {
            "name": name[0].upper() + name[1:],
            "text": extra.text,
            "primary": percent(extra.primary),
            "without": percent(extra.scan_without),
        }
        for extra, name in zip(scan.extras, extra_names(scan), strict=True)
    ]


def _overviews(
    scan: ScanPrediction, hu: np.ndarray, box: HeadBox, spacing_mm: tuple[float, float] | None
) -> dict[str, str]:
    """Coronal and sagittal overview of a scan with evenly spaced slices; empty for others."""
    heights = [slice_.position_mm for slice_ in scan.slices if slice_.position_mm is not None]
    if spacing_mm is None or len(heights) < max(3, len(scan.slices)):
        return {}
    steps = np.diff(heights)
    step = float(np.median(steps))
    if step <= 0 or np.abs(steps - step).max() > EVEN * step:
        return {}
    return overview(hu, box, (step, *spacing_mm))


def _overview_sides(edges: Edges | None) -> dict[str, dict[str, str]]:
    """Sides of the patient at the left and right edges of the coronal and the sagittal overview."""
    if edges is None:
        return {"coronal": {}, "sagittal": {}}
    return {
        "coronal": {"left": edges.left, "right": edges.right},
        "sagittal": {"left": edges.top, "right": edges.bottom},
    }


def _values(slice_: SliceResult) -> dict[str, str]:
    return {
        "place": "" if slice_.position_mm is None else f"{slice_.position_mm:.1f} mm",
        "probability": percent(slice_.probability),
        "interval": interval(slice_.interval_95),
        "without": "–" if slice_.scan_without is None else percent(slice_.scan_without),
        "label": {0: "no bleed", 1: "bleed", None: "–"}[slice_.label],
        "corrections": ", ".join(Code(code).text for code in slice_.corrections) or "none",
    }


def _top(
    slice_: SliceResult,
    pictures: dict[str, list[str]],
    overlays: dict[str, Overlay],
    edges: Sequence[Edges | None],
) -> dict[str, Any]:
    return {
        "number": slice_.slice + 1,
        "edges": edges[slice_.slice],
        "values": _values(slice_),
        "picture": pictures["brain"][slice_.slice],
        "location": overlays["mean"].pictures.get(slice_.slice) if overlays else None,
        "empty": bool(overlays) and slice_.slice in overlays["mean"].clear,
    }


def _sides(edges: Sequence[Edges | None]) -> str:
    letters = {letter for of_slice in edges if of_slice for letter in of_slice}
    if not letters:
        return "The orientation of the slices is unknown: no side of the patient is marked."
    sides = ", ".join(f"{letter} {side}" for letter, side in SIDES.items() if letter in letters)
    return f"Letters at the edges mark the sides of the patient: {sides}."


def _ranges(indices: list[int], n_slices: int) -> str:
    """Format 0-based slice indices as '13–16, 20' for 12 to 15 and 19."""
    return ", ".join(numbers(*run) for run in slice_runs(np.isin(np.arange(n_slices), indices)))
