from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from ich_mil.evaluate.show import table_blocks
from ich_mil.evaluate.table import Scores, evaluate
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.predictions import NOTICE
from ich_mil.report.html import (
    MAX_SCANS,
    EvaluatedSet,
    ModelCard,
    RunPage,
    ScanRow,
    SlicePicture,
    SplitCount,
    StudyPage,
    percent,
    relative_link,
    render_run,
    render_study,
    study_file_name,
    summary,
    verdict,
    write_page,
)

HOSTILE = [
    "<script>alert(1)</script>",
    '" onload="alert(1)" x=\'',
    "'><img src=https://evil.example/x.png>",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 300,
    "//evil.example/a",
    "javascript:alert(1)",
    "$x_{$ & \u202e gnp \x00\udc80",
]
CARD = ModelCard("G-VGPMIL", "0.1.0 weights 3f9a", "a1b2c3", "isotonic on 112 scans")


class Page(HTMLParser):
    """Collects tags, addresses, attribute names and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.attributes, self.text = [], [], set(), ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        self.addresses += [
            v for k, v in attributes if k in ("src", "href", "srcset", "action", "data", "poster")
        ]

    def handle_data(self, data):
        self.text += data


def check_offline(html):
    page = Page(html)
    for address in page.addresses:
        assert address.startswith(("data:image/png;base64,", "#")) or ":" not in address, address
        assert not address.startswith(("/", "\\")), address
    assert not {"script", "link", "iframe", "object", "base", "form"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in html
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert NOTICE in page.text
    assert len(html.encode()) < 2_000_000
    return page


def picture(index=4, maps=True, size=64):
    rng = np.random.default_rng(index)
    image = rng.random((size, size))
    low = rng.random((6, 6))
    return SlicePicture(image, index, 0.8, 0.05, low if maps else None, low / 3 if maps else None, 12.5)


@pytest.fixture
def study():
    p = np.array([0.1, 0.2, 0.61, 0.834, 0.9, 0.7, 0.1])
    return StudyPage(
        "CQ500CT12",
        CARD,
        0.873,
        std=0.0614,
        low=0.712,
        high=0.951,
        slice_probability=p,
        slice_low=p - 0.05,
        slice_high=p + 0.05,
        slice_labels=np.array([0, 0, 1, 1, 1, -1, 0]),
        pictures=[picture()],
        ledger=[LedgerEntry("CQ500CT12", "CT000003.dcm", Code.INTERCEPT_12_BIT, "added 1000 HU")],
        run_link="../report.html",
    )


@pytest.fixture
def run():
    labels = np.array([0, 1] * 15)
    rng = np.random.default_rng(0)
    scores = [
        Scores(name, np.clip(labels * 0.3 + rng.random(30) * 0.7, 0, 1), None) for name in ("GP", "CNN")
    ]
    frame = evaluate(
        scores,
        labels=labels,
        patients=[str(i) for i in range(30)],
        offsets=np.arange(31),
        seed=0,
        resamples=50,
    )
    return RunPage(
        "rsna_d8",
        CARD,
        "seed: 0\nmodel: papers",
        splits=[SplitCount("train", 1234, 1200, 43210, 555, 7)],
        sets=[EvaluatedSet("CQ500", frame, labels, scores)],
        scans=[
            ScanRow("low", 0.1234, 0.0567, 0.02, 0.3, 0),
            ScanRow("high", 0.9876, None, label=1, link="studies/scan-high.html"),
        ],
        curves=pd.DataFrame({"train_loss": [0.9, 0.5], "val_loss": [0.8, 0.7]}),
        ledger={"localizer": 33},
        limits=["Adult scans without contrast only."],
    )


def test_study_shows_the_numbers_it_was_given(study):
    page = check_offline(render_study(study))
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    for expected in (
        "87 %",
        "95 % interval 71 % to 95 %",
        "standard deviation 0.061",
        "Hemorrhage likely",
        "4 of 7 slices reach 50 % (slices 3–6)",
        "the highest is slice 5 at 90 %",
        "0.834",
        "0.784 – 0.884",
        "Slice 5",
        "12.5 mm",
        "± 0.050",
        "intercept-12-bit",
        "added 1000 HU",
        "CT000003.dcm",
        "G-VGPMIL",
        "0.1.0 weights 3f9a",
        "a1b2c3",
        "isotonic on 112 scans",
    ):
        assert expected in text, expected
    assert "../report.html" in page.addresses


def test_gauge_stands_where_the_numbers_are(study):
    html = render_study(study)
    assert 'cx="873.0"' in html
    assert 'x1="712.0" y1="24" x2="951.0"' in html


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_in_a_study_are_only_text(study, text):
    card = ModelCard(text, text, text, text)
    entry = LedgerEntry(text, text, Code.UNREADABLE, text)
    hostile = replace(
        study, scan=np.str_(text), model=card, ledger=[entry], run_link="../" + study_file_name(text)
    )
    html = render_study(hostile)
    page = check_offline(html)
    ordinary = Page(render_study(study))
    assert page.tags == ordinary.tags
    assert page.attributes == ordinary.attributes
    html.encode("utf-8")
    assert not set("\u202e\x00\udc80") & set(html)
    if text.isprintable():
        assert page.text.count(text) >= 7
    if "<" in text:
        assert text not in html


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_in_a_run_are_only_text(run, text):
    run = replace(
        run, curves=None, sets=[replace(run.sets[0], labels=None)]
    )  # names in figures: test_figures
    link = f"studies/{study_file_name(text)}"
    hostile = replace(
        run,
        name=text,
        model=ModelCard(text, text, text, text),
        config=text,
        splits=[SplitCount(text, 1, 1, 1, 1)],
        scans=[ScanRow(text, 0.5, None, link=link), ScanRow(text, 0.4, 0.1)],
        ledger={text: 3},
        limits=[text],
        sets=[replace(run.sets[0], name=text, table=run.sets[0].table.replace({"model": {"CNN": text}}))],
    )
    html = render_run(hostile)
    page = check_offline(html)
    assert page.tags == Page(render_run(run)).tags
    html.encode("utf-8")
    if text.isprintable():
        assert page.text.count(text) >= 10
    if "<" in text:
        assert text not in html


def test_a_study_without_slices_maps_labels_or_uncertainty(study):
    bare = StudyPage("s", ModelCard("CNN", "1", "c"), 0.2)
    text = check_offline(render_study(bare)).text
    assert "This model gives no uncertainty" in text
    assert "says nothing of single slices" in text
    assert "Nothing was refused, corrected or noted" in text
    assert "scan probabilities are as the model gives them" in text
    assert "nan" not in text.lower()
    assert "None" not in text
    without = replace(
        study, pictures=[picture(maps=False)], slice_labels=None, slice_low=None, slice_high=None
    )
    page = check_offline(render_study(without))
    assert "gives no heatmaps" in page.text
    assert "labelled positive" not in page.text
    assert "95 % interval." not in page.text
    assert (
        page.tags.count("img") == check_offline(render_study(study)).tags.count("img") - 4
    )  # 2 maps, 2 keys


def test_only_the_most_probable_slices_are_pictured_and_the_page_stays_small(study):
    y, x = np.indices((512, 512)) / 256 - 1
    head = (y / 0.85) ** 2 + (x / 0.7) ** 2 < 1  # noise inside a head, air outside: as heavy as a real slice
    pictures = [picture(index=i, size=512) for i in range(7)]
    pictures = [replace(one, image=one.image * head, probability=0.1 * one.index) for one in pictures]
    text = check_offline(render_study(replace(study, pictures=pictures))).text
    places = [text.find(f"Slice {i}") for i in (7, 6, 5, 4)]
    assert -1 < places[0] < places[1] < places[2] < places[3]
    assert "Slice 3" not in text


def test_flat_or_nan_maps_do_not_break_a_page(study):
    broken = replace(picture(), mean_map=np.full((6, 6), np.nan), std_map=np.full((6, 6), -np.inf))
    check_offline(render_study(replace(study, pictures=[broken])))


@pytest.mark.parametrize(
    ("probability", "low", "high", "expected"),
    [
        (0.9, 0.6, 0.99, "Hemorrhage likely"),
        (0.6, 0.4, 0.8, "Undecided"),
        (0.1, 0.0, 0.3, "Hemorrhage unlikely"),
        (0.5, None, None, "Hemorrhage likely"),
        (0.49, None, None, "Hemorrhage unlikely"),
    ],
)
def test_verdict(study, probability, low, high, expected):
    page = replace(study, probability=probability, low=low, high=high)
    assert verdict(page) == expected
    assert expected in Page(render_study(page)).text
    assert ("does not decide" in " ".join(summary(page))) == (expected == "Undecided")


@pytest.mark.parametrize("probability", [float("nan"), -0.1, 1.01])
def test_a_probability_that_is_none_is_refused(study, probability):
    with pytest.raises(ValueError, match=r"CQ500CT12.*must lie in"):
        render_study(replace(study, probability=probability))
    with pytest.raises(ValueError, match="slice probabilities must lie"):
        render_study(replace(study, slice_probability=np.full(7, probability)))
    with pytest.raises(ValueError, match="7 slice probabilities, but 3"):
        render_study(replace(study, slice_labels=np.zeros(3)))


def test_run_shows_the_numbers_it_was_given(run):
    page = check_offline(render_run(run))
    row = run.sets[0].table.iloc[0]
    assert f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]" in page.text
    for block in table_blocks(run.sets[0].table):
        for name, cells in block.rows:
            assert name in page.text
            assert all(cell in page.text for cell in cells)
    for expected in ("1,234", "43,210", "555", "0.123", "0.057", "0.988", "0.020 – 0.300", "localizer", "33"):
        assert expected in page.text, expected
    assert "no slice labels" in page.text
    assert "model: papers" in page.text
    assert "Adult scans without contrast only." in page.text
    assert page.text.index("0.988") < page.text.index("0.123")
    assert "studies/scan-high.html" in page.addresses
    assert page.tags.count("img") == 3


def test_a_run_with_nothing_but_a_name():
    page = check_offline(render_run(RunPage("empty", CARD, "")))
    assert "img" not in page.tags


def test_one_class_draws_no_roc(run):
    one = replace(run.sets[0], labels=np.ones(30, int))
    assert Page(render_run(replace(run, sets=[one]))).tags.count("img") == 2
    none = replace(run.sets[0], labels=np.full(30, -1))
    assert Page(render_run(replace(run, sets=[none]))).tags.count("img") == 1


def test_a_long_list_is_cut_and_says_so(run):
    rows = [ScanRow(f"scan {i}", i / 3000) for i in range(3000)]
    text = check_offline(render_run(replace(run, scans=rows))).text
    assert f"The first {MAX_SCANS:,} of 3,000 scans" in text
    assert "scan 2999" in text
    assert "scan 999\n" not in text


def test_percent():
    texts = [percent(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0, 0.009, 0.01, 0.873, 0.99, 0.9996, 1)]
    assert texts == ["< 1 %", "< 1 %", "1 %", "87 %", "99 %", "> 99 %", "> 99 %"]


def test_relative_link():
    assert relative_link("studies/a b.html") == "studies/a%20b.html"
    assert relative_link("../report.html") == "../report.html"
    assert relative_link("javascript:alert(1)") == "javascript%3Aalert%281%29"
    for address in ("/etc/passwd", "//evil.example", r"\\evil"):
        with pytest.raises(ValueError, match="must be relative"):
            relative_link(address)


def test_study_file_names_are_safe_short_and_distinct():
    assert study_file_name("CQ500CT12") == "scan-CQ500CT12.html"
    names = [study_file_name(scan) for scan in [*HOSTILE, "a/b", "a-b", "a\\b", "..", "", "CON", "x" * 301]]
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert set(name.removesuffix(".html")) <= set(map(chr, range(48, 123))) | {"-"}
        assert not set(name) & set('/\\:*?"<>|')
        assert len(name) < 100


def test_pages_are_written_whole(study, tmp_path):
    path = tmp_path / "studies" / "a.html"
    path.parent.mkdir()
    path.write_text("old")
    html = render_study(replace(study, scan="Größe \udc80"))
    write_page(html, path)
    assert path.read_text(encoding="utf-8") == html
    assert list(path.parent.iterdir()) == [path]
