import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ich_mil.ledger import (
    BY_INTERVAL,
    GUARANTEED,
    LOOK,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    THRESHOLD,
    Code,
    LedgerEntry,
    decision_words,
    problems,
)
from ich_mil.model.predictions import Provenance, Results, read_results, write_results
from ich_mil.pages.page import percent, study_file_name
from ich_mil.pages.study_page import PROBLEMS_ON_PAPER, Neighbours, render_study
from ich_mil.sets.extras import ExtraInstance
from ich_mil.study.geometry.planes import Edges
from ich_mil.study.head_box import head_box
from tests.html_page import HOSTILE, check_offline
from tests.results import MODEL, maps_of, scan_of

MASKS = np.pad(np.ones((6, 8, 8), bool), ((12, 2), (12, 12), (12, 12)))
SCAN = scan_of(MASKS)
MAPS = maps_of(MASKS, most=5, cells=4)
HU = np.random.default_rng(0).integers(0, 80, MASKS.shape).astype(np.int16)


def page_of(scan=SCAN, *, model=MODEL, decided_by=BY_INTERVAL, hu=HU, maps=MAPS, **options):
    return check_offline(render_study(scan, model, decided_by, hu, maps, **options))


def said(page):
    return page.text.replace("\N{NO-BREAK SPACE}", " ")


def data_of(page):
    return json.loads(page.code["script"][0])


def test_the_page_says_what_predictions_json_says():
    html = render_study(SCAN, MODEL, BY_INTERVAL, HU, MAPS, run_link="../report.html")
    page = check_offline(html)
    text = said(page)
    for expected in (
        "87 %",
        "▲ Probability above 50 %",
        "95 % interval 71 % to 95 %",
        "Calibrated probability of intracranial hemorrhage",
        "Without slices 13–18 the scan's probability would be 21 %.",
        "Refused: a repeated slice",
        "Not a plain axial head series (post-contrast)",
        "Refused: a localizer",
        "where the 95 % interval lies against 50 %, without a guarantee",
        "Label of the data set: hemorrhage",
        "Slice 13: 94 % (90 % to > 99 %)",
        "Heatmaps: slices 13–17 only",
        "reduced copies",
        "below with the likely location of a bleed), in the orientation of the files",
        "All numbers are from predictions.json, which counts slices from 1",
        "isotonic regression",
        *(MODEL.name, MODEL.version, MODEL.weights, MODEL.config, MODEL.trained_on),
    ):
        assert expected in text, expected
    assert "distance along the normal of the slices, not SliceLocation" in text
    assert 0 < html.index("../report.html") < html.index('class="result')  # a way back at the top
    assert 'cx="873.0"' in html  # the gauge
    assert 'x1="712.0" y1="24" x2="951.0"' in html
    assert html.count('class="hit"') == html.count('class="band"') == 20
    assert html.count('class="mean positive"') == 6
    assert html.count('class="mapped"') == 5
    assert "nan" not in text.lower()
    assert "None" not in text


def test_probabilities_are_those_of_predictions_json(tmp_path):
    slices = tuple(
        replace(one, probability=0.001 + 0.047 * one.slice, scan_without=0.873 - 0.013 * one.slice)
        for one in SCAN.slices
    )
    written = Results("new", MODEL, BY_INTERVAL, (replace(SCAN, slices=slices),), ())
    write_results(written, tmp_path)
    results = read_results(tmp_path)
    html = render_study(results.scans[0], results.model, results.decided_by, HU, MAPS)
    assert html == render_study(written.scans[0], MODEL, BY_INTERVAL, HU, MAPS)
    known: set[str] = set()

    def gather(value):
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            gather(one)
        if isinstance(value, float) and 0 <= value <= 1:
            known.add(percent(value))

    gather(json.loads((tmp_path / "predictions.json").read_text())["scans"])
    page = check_offline(html)
    known.add(percent(THRESHOLD))
    for text in (" ".join(page.pieces), page.code["script"][0].encode().decode("unicode_escape")):
        found = set(re.findall(r"[<>]?\N{NO-BREAK SPACE}?\d+\N{NO-BREAK SPACE}%", text))
        assert len(found) > 20
        assert found <= known


@pytest.mark.parametrize("decided_by", ["a guarantee", BY_INTERVAL])
@pytest.mark.parametrize("decision", [POSITIVE, LOOK, NEGATIVE])
def test_the_result_is_the_decision_whatever_the_probability(decision, decided_by):
    text = page_of(replace(SCAN, decision=decision), decided_by=decided_by).text
    assert ("Never called negative: not a plain axial head series (post-contrast)." in text) == (
        decision == LOOK
    )
    (title,) = re.findall("Intracranial hemorrhage.*%", text)[:1]
    assert title.count("Intracranial hemorrhage") == 1
    wordings = {*GUARANTEED.values(), *PLAIN.values()}
    assert [words for words in wordings if words in text] == [decision_words(decided_by)[decision]]


def test_data_of_the_viewer():
    data = data_of(page_of())
    assert {name: len(pictures) for name, pictures in data["pictures"].items()} == {
        "brain": 20,
        "blood": 20,
        "soft tissue": 20,
        "bone": 20,
    }
    for name in ("location", "uncertainty"):
        assert list(data["overlays"][name]) == ["12", "13", "14", "15", "16"]
    assert data["runs"] == [[12, 17]]
    top, left, bottom, right = head_box(HU)
    assert data["box"] == [left / 32, top / 32, right / 32, bottom / 32]
    assert data["slices"][12] == {
        "place": "60.0 mm",
        "probability": "94\N{NO-BREAK SPACE}%",
        "interval": "90\N{NO-BREAK SPACE}% to >\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%",
        "without": "86\N{NO-BREAK SPACE}%",
        "label": "bleed",
        "corrections": "none",
    }


def planes_of(heights, **options):
    slices = tuple(replace(one, position_mm=at) for one, at in zip(SCAN.slices, heights, strict=True))
    page = page_of(replace(SCAN, slices=slices), **options)
    return [words for words in page.alternatives if words.startswith("Middle")]


def test_overviews_are_shown_of_evenly_spaced_slices_only():
    even = [5.0 * i for i in range(len(SCAN.slices))]
    spacing = {"spacing_mm": (0.5, 0.5)}
    assert planes_of(even, **spacing) == [
        f"Middle {name} section, brain window" for name in ("coronal", "sagittal")
    ]
    for ledger, edges in (
        ((LedgerEntry("s", "", Code.TILTED, ""),), [Edges("R", "L", "A", "P")] * 20),
        ((), ()),
    ):
        tilted = replace(SCAN, ledger=ledger)
        page = render_study(tilted, MODEL, BY_INTERVAL, HU, None, edges=edges, **spacing)
        planes = page[page.index('class="plane"') : page.index('class="quiet by-finger"')]
        marks = re.findall(r'class="edge" data-edge="(\w+)">(\w)', planes)
        assert marks == [*zip(["left", "right"] * 2, "RLAP", strict=True)] * len(ledger)
        assert planes.count("overview may be sheared") == len(ledger)
    assert planes_of([at + 0.4 * (i == 7) for i, at in enumerate(even)], **spacing)  # 8 % of a step
    assert not planes_of(even)  # the spacing of rows and columns is unknown
    assert not planes_of([at + 0.6 * (i == 7) for i, at in enumerate(even)], **spacing)
    assert not planes_of([at + 5 * (i > 7) for i, at in enumerate(even)], **spacing)  # a gap
    assert not planes_of([None, *even[1:]], **spacing)
    assert not planes_of([0.0] * len(even), **spacing)


def test_the_page_links_to_its_neighbours():
    def links(neighbours):
        return [at for at in page_of(neighbours=neighbours).addresses if at.endswith(".html")]

    assert links(Neighbours("index.html", "a.html", "b.html")) == ["index.html", "a.html", "b.html"]
    assert links(Neighbours("index.html", next="b.html")) == ["index.html", "b.html"]
    assert links(None) == []


def test_top_pictures_and_first_slice_of_the_viewer():
    slices = tuple(replace(one, probability=0.9 if one.slice == 15 else 0.3) for one in SCAN.slices)
    html = render_study(replace(SCAN, slices=slices), MODEL, BY_INTERVAL, HU, MAPS)
    data = data_of(check_offline(html))
    plain = re.findall(r'<img src="([^"]+)"[^>]* alt="Slice (\d+), brain window">', html)
    assert plain == [(data["pictures"]["brain"][n - 1], str(n)) for n in (13, 14, 15, 16)]
    over = re.findall(r'<img class="over" src="([^"]+)"', html)
    assert over == [data["overlays"]["location"][str(n)] for n in (12, 13, 14, 15)]
    assert re.findall(r'id="slider"[^>]* value="(\d+)"', html) == ["16"]


def test_slices_whose_heatmap_shows_nothing():
    faint = MAPS.mean.copy()
    faint[1:] *= 0.1 / faint[1:].max()
    html = render_study(SCAN, MODEL, BY_INTERVAL, HU, replace(MAPS, mean=faint))
    assert html.count("Location of a bleed: no place reaches") == 3
    assert data_of(check_offline(html))["clear"] == {"location": [13, 14, 15, 16], "uncertainty": []}
    assert html.count('<svg viewBox="-12 0') == 3  # the scale stands in print, too
    nothing = page_of(maps=replace(MAPS, mean=0 * faint))
    assert "with the likely location" not in nothing.text + "".join(nothing.alternatives)


def test_turned_pictures_are_not_those_of_the_files():
    turned = LedgerEntry("s", "", Code.FLIPPED, "")
    text = page_of(replace(SCAN, ledger=(turned,))).text
    assert "turned from the orientation of the files" in text
    assert "in the orientation of the files" not in text


def test_pictures_are_marked_with_sides():
    usual, mirrored = Edges("R", "L", "A", "P"), Edges("L", "R", "A", "P")
    edges = [mirrored if i == 13 else usual for i in range(len(SCAN.slices))]
    edges[5] = Edges("R", "L", "H", "F")
    html = render_study(SCAN, MODEL, BY_INTERVAL, HU, MAPS, edges=edges)
    marks = re.findall(r'<span class="edge" data-edge="(\w+)">(\w)</span>', html)
    pictures = [dict(marks[i : i + 4]) for i in range(0, len(marks), 4)]
    # slices 13 to 16, each with and without its heatmap
    assert pictures == [one._asdict() for one in (usual,) * 2 + (mirrored,) * 2 + (usual,) * 4]
    page = check_offline(html)
    assert data_of(page)["edges"] == [one._asdict() for one in edges]
    assert "the sides of the patient: R right, L left, A front, P back, H head, F feet." in page.text


def test_without_an_orientation_no_side_is_marked():
    for edges in ((), [None] * len(SCAN.slices)):
        page = page_of(edges=edges)
        assert not {"R", "L", "A", "P"} & {piece.strip() for piece in page.pieces}
        assert data_of(page)["edges"] == [None] * len(SCAN.slices)
        assert "no side of the patient is marked" in page.text
        assert "sides of the patient:" not in page.text
    with pytest.raises(ValueError, match="20 pictures and edges of 19 for 20 slices"):
        page_of(edges=[None] * 19)


def test_without_maps_labels_positions_or_problems():
    slices = tuple(
        replace(one, position_mm=None, label=None, scan_without=None, corrections=()) for one in SCAN.slices
    )
    page = page_of(
        replace(SCAN, slices=slices, label=None, ledger=(), runs=()),
        maps=None,
        model=replace(MODEL, calibration=""),
    )
    text = said(page)
    assert "No heatmaps: this model does not locate bleeds" in text
    assert "No problem found in the input" in text
    assert "Nothing was refused, corrected or noted" in text
    assert "Probability, not calibrated, of intracranial" in " ".join(text.split())
    assert "Label" not in text
    assert "Triangles" not in text
    assert "None" not in text
    assert data_of(page)["overlays"] == {}
    assert len(page.alternatives) == 6  # four top slices, and the two of the viewer


def test_page_tells_the_assumed_prevalence():
    text = " ".join(said(page_of(model=replace(MODEL, prevalence=0.05))).split())
    assert "hemorrhage in this scan, if 5 % of scans show one." in text


def test_warning_of_an_unlike_scan():
    warning = "This scan is unlike the training scans (2.3 times the limit)"
    text = said(page_of(replace(SCAN, unlikeness=2.31)))
    assert text.index(warning) < text.index("Slices that determine the result")
    for like in (None, 0.4, 1.0):
        assert "is unlike" not in said(page_of(replace(SCAN, unlikeness=like)))


def test_corrections_are_worded():
    first = replace(SCAN.slices[0], corrections=("hu-clipped", "padding"))
    data = data_of(page_of(replace(SCAN, slices=(first, *SCAN.slices[1:]))))
    assert data["slices"][0]["corrections"] == "extreme values cut, padding set to air"


def test_texts_of_sentences_are_shown_on_request():
    extras = (
        ExtraInstance("sentence", "<b>John Doe</b> fell.", 0.8, 0.31),
        ExtraInstance("covariates", "age 80", 1.0, 0.5),
    )
    mixed = replace(SCAN, extras=extras)
    hidden, shown = said(page_of(mixed)), said(page_of(mixed, texts={"PatientName": "DOE^JOHN"}))
    assert "Doe" not in hidden
    assert "age 80" not in hidden
    for text in (hidden, shown):
        assert "Sentence 1" in text
        assert "Without sentence 1 the scan's probability would be 31 %." in text
        assert "The covariates" in text
    assert "<b>John Doe</b> fell." in shown
    assert "Sentences and covariates" not in said(page_of())


def test_dicom_texts_are_hidden_unless_asked_for():
    entry = LedgerEntry("s", "DOE^JANE/1.dcm", Code.UNREADABLE, "series 'DOE JANE HEAD'")
    named = replace(SCAN, patient="PAT-DOE", ledger=(entry,))
    hidden = render_study(named, MODEL, BY_INTERVAL, HU, MAPS)
    for text in ("DOE^JANE", "DOE JANE", "PAT-DOE"):
        assert text not in hidden
    assert "Details and file names may contain a patient's name" in hidden
    shown = page_of(named, texts={"PatientName": "DOE^JANE"}).text
    for text in ("Patient", "head CT DOE, JANE", "DOE^JANE/1.dcm", "series 'DOE JANE HEAD'"):
        assert text in shown


def test_the_uid_is_below_and_not_in_the_title():
    uid = "1.2.826.0.1.3680043.9.4245.1760717064491086528325869788156915668"
    html = render_study(replace(SCAN, scan=uid, folder="CT_085_HEAD"), MODEL, BY_INTERVAL, HU, MAPS)
    titles = re.findall(r"<title>(Intra.*)</title>", html) + re.findall(r"head CT <bdi>(.*?)</bdi>", html)
    assert [title.endswith("CT_085_HEAD (…56915668)") for title in titles] == [True, True]
    assert html.count(uid) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_only_text(text):
    entry = LedgerEntry(text, text, Code.UNREADABLE, text)
    hostile = replace(SCAN, scan=text, patient=text, folder=text, ledger=(entry,) * 2)
    quiet = replace(SCAN, ledger=(replace(entry, scan="s", file="f", detail="d"),) * 2)
    page = page_of(
        hostile,
        model=Provenance(text, text, text, text, text, text),
        decided_by=text,
        texts={"PatientName": text, text + " ": text},
        run_link="../" + study_file_name(text),
    )
    ordinary = page_of(quiet, texts={"PatientName": "n", "StudyDate": "d"}, run_link="../report.html")
    assert page.tags == ordinary.tags
    assert page.attributes == ordinary.attributes
    assert page.code == ordinary.code
    if text.isprintable():
        assert page.text.count(text) >= 10


def test_problems_on_screen_and_on_paper():
    entries = tuple(LedgerEntry("s", "f", code, "") for code in Code)
    html = render_study(replace(SCAN, ledger=entries), MODEL, BY_INTERVAL, HU, MAPS)
    rest = html.count('<li class="rest">')
    assert rest == len(problems(entries)) - PROBLEMS_ON_PAPER > 5
    assert f"{rest} more: see the page on a screen" in html
    assert 'class="on-paper"' not in render_study(SCAN, MODEL, BY_INTERVAL, HU, MAPS)


def test_forty_noisy_slices_take_five_megabytes():
    rng = np.random.default_rng(0)
    y, x = np.indices((512, 512)) / 256 - 1
    head = ((y / 0.85) ** 2 + (x / 0.7) ** 2 < 1) * 1040.0 - 1000  # brain in air
    hu = np.stack([head + 12 * rng.standard_normal((512, 512)) for _ in range(40)]).astype(np.int16)
    masks = np.zeros((40, 512, 512), bool)
    masks[10:18, 200:300, 200:300] = True
    html = render_study(scan_of(masks), MODEL, BY_INTERVAL, hu, maps_of(masks))
    assert len(html.encode()) < 5_000_000
    assert 'width="512" height="512"' in html
