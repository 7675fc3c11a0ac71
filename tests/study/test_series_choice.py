"""Which series stands for a study, the reason in words, and the lines for the others."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.geometry.order import Series
from ich_mil.study.series_choice import kind_entries, not_chosen, rank_series, reason_for
from tests.study.headers import header, ordered, series_of, stack, tilted


def coronal(uid: str, n: int, step: float) -> Series:
    slices = [
        header(
            i, number=i, series_uid=uid, position=(0.0, step * i, 0.0), orientation=(1.0, 0, 0, 0, 0, -1.0)
        )
        for i in range(n)
    ]
    return ordered(slices)


def chosen(*series: Series) -> tuple[str, str]:
    ranked = rank_series(series)
    assert rank_series(series[::-1]) == ranked
    assert sorted(map(id, ranked)) == sorted(map(id, series))
    entries = not_chosen(ranked[0], series)
    assert [e.code for e in entries] == [Code.SERIES_NOT_CHOSEN] * (len(series) - 1)
    return ranked[0].series_uid, reason_for(ranked[0], series)


def kind(series: Series) -> str:
    return reason_for(series, [series]).split(",")[0]


def test_choice_as_in_cq500():
    picked, reason = chosen(
        series_of("thin", 250, 0.625, description="CT PRE CONTRAST THIN"),
        series_of("thick", 32, 5.0, description="CT PRE CONTRAST 5MM"),
        series_of("post", 33, 5.0, description="CT POST CONTRAST"),
        series_of("bone", 34, 5.0, description="CT BONE"),
    )
    assert picked == "thick"
    assert (
        reason
        == "plain, 5.0 mm, 32 slices, 155 mm; 2 of 4 series are post-contrast, bone, spectral or not axial"
    )


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, kernel="BONEPLUS")),
        (series_of("z", 32, 5.0), series_of("a", 40, 5.0, image_type=r"DERIVED\SECONDARY\AXIAL")),
        (series_of("z", 32, 5.0, description="TOUBU"), series_of("a", 40, 5.0, description="TOUBU HONE")),
        (series_of("z", 32, 5.0, description="TOUBU"), series_of("a", 40, 5.0, description="GANMEN NANBU")),
        (series_of("z", 32, 5.0, description="NOU"), series_of("a", 40, 5.0, description="KEITSUI")),
        (series_of("z", 32, 5.0, kernel="FC68"), series_of("a", 40, 5.0, kernel="FC81")),
        (series_of("z", 22, 7.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 260, 0.625)),
        (series_of("z", 50, 2.5), series_of("a", 260, 0.625)),
        (series_of("z", 260, 0.625), series_of("a", 17, 10.0)),
        (series_of("z", 260, 0.625), series_of("a", 20, 8.0)),
        (series_of("z", 260, 0.625), series_of("a", 14, 5.0)),  # 65 mm are not a head
        (series_of("z", 32, 5.0), series_of("a", 31, 5.0)),
        (series_of("z", 32, 5.0, kernel="BONE"), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 18, 5.0), series_of("a", 32, 5.0, contrast=True)),  # 85 mm plain
        (series_of("z", 32, 5.0, contrast=True), series_of("a", 2, 5.0)),  # a plain stub
        (series_of("z", 32, 5.0, contrast=True), coronal("a", 60, 4.0)),
        (series_of("z", 30, 5.0, no_contrast=True), series_of("a", 30, 5.0)),
        (series_of("z", 30, 5.0, description="头部平扫"), series_of("a", 32, 5.0, description="头部增强")),
        (series_of("z", 32, 5.0, body_part="CHEST"), series_of("a", 3, 5.0)),  # a stub of the head
        (series_of("z", 30, 5.0), series_of("a", 32, 5.0, description="Mono 40 keV 1.0")),
        (series_of("z", 30, 5.0), series_of("a", 32, 5.0, image_type="DERIVED\\PRIMARY\\AXIAL\\VMI")),
        (series_of("z", 30, 5.0), series_of("a", 32, 5.0, description="DE Head Sn140kV")),
        (series_of("z", 30, 5.0), series_of("a", 32, 5.0, description="DE Head M_0.5")),
        (series_of("z", 30, 5.0, kernel="BONE"), series_of("a", 32, 5.0, description="Z effective")),
        (series_of("z", 30, 5.0, kvp=120.0), series_of("a", 32, 5.0, kvp=80.0)),
        (series_of("z", 30, 5.0), series_of("a", 40, 4.0, description="Sinus", body_part="HEAD")),
        (
            series_of("z", 30, 5.0, contrast=True),
            series_of("a", 40, 4.0, description="C-SPINE", body_part="HEAD"),
        ),
        (series_of("z", 30, 5.0), series_of("a", 40, 4.0, description="Head + Orbits")),
        (series_of("z", 30, 5.0), replace(series_of("a", 40, 4.0), sharp="sharp")),
        (
            series_of("z", 30, 5.0),
            ordered([*stack(range(0, 160, 5), series_uid="a"), header(5, number=99, series_uid="a")]),
        ),
        (  # 90 mm without a gap are not a head
            ordered(stack([0, 5, 10, 15, 40, *range(45, 150, 5)], series_uid="z")),
            series_of("a", 19, 5.0),
        ),
        (
            series_of("z", 32, 5.0, path="s/CT-2/1.dcm", sop_uid="1"),
            series_of("a", 31, 5.0, path="s/CT/1.dcm", sop_uid="1"),
        ),
    ],
)
def test_preferences(better, worse):
    assert chosen(better, worse)[0] == "z"


DESCRIPTIONS = Path(__file__).with_name("descriptions.csv").read_text("utf-8").splitlines()[1:]
"""Descriptions of CQ500 and of other places."""


@pytest.mark.parametrize("row", DESCRIPTIONS)
def test_descriptions(row):
    description, expected = row.split(",")
    assert kind(series_of("a", 32, 5.0, description=description)) == expected
    if "/" not in description:  # the folder stands for a missing description
        in_folder = [header(5 * i, path=f"scan/{description}/{i}.dcm") for i in range(30)]
        assert kind(ordered(in_folder)) == expected


def test_a_series_longer_than_a_head_stands_behind():
    body, head = series_of("a", 330, 5.0), series_of("z", 25, 5.0)
    assert (body.extent, head.extent) == (1645, 120)
    assert chosen(body, head)[0] == "z"
    assert chosen(body, series_of("z", 19, 5.0))[0] == "z"  # 90 mm of head are better, too
    assert chosen(series_of("a", 53, 5.0), head)[0] == "a"  # 260 mm may be a head
    assert chosen(series_of("a", 54, 5.0), head)[0] == "z"
    assert chosen(body, series_of("z", 25, 5.0, contrast=True))[0] == "a"  # a preference among like kinds


@pytest.mark.parametrize(
    ("series", "codes", "detail"),
    [
        (series_of("a", 32, 5.0, contrast=True), [Code.SERIES_KIND], "is post-contrast"),
        (coronal("a", 40, 4.0), [Code.SERIES_KIND], "is not axial"),
        (
            series_of("a", 80, 5.0, body_part="CHEST"),
            [Code.SERIES_KIND],
            "is of another body part, longer than",
        ),
        (series_of("a", 54, 5.0), [Code.SERIES_KIND], "is longer than a head (265 mm)"),
        (series_of("a", 14, 5.0, description="CT Plain"), [Code.PART_OF_HEAD], "14 slices cover 65 mm"),
        (
            series_of("a", 32, 5.0, description="GSI 70 keV"),
            [Code.SERIES_KIND],
            "a virtual monoenergetic image",
        ),
        (series_of("a", 32, 5.0, description="Orbits 2mm"), [Code.SERIES_KIND], "is of a part of the head"),
        (replace(series_of("a", 32, 5.0), sharp="sharp: noise"), [Code.SERIES_KIND], "is bone, sharp: noise"),
        (series_of("a", 32, 5.0, description="DE Head M_0.5"), [], ""),
        (series_of("a", 32, 5.0, kvp=100.0), [], ""),
        (series_of("a", 32, 5.0, description="CT Plain"), [], ""),
        (ordered([header(5 * i, path=f"scan/qwert/{i}.dcm") for i in range(30)]), [], ""),  # name of a folder
    ],
)
def test_the_kind_of_what_is_chosen_is_noted(series, codes, detail):
    entries = kind_entries(series)
    assert [(e.scan, e.file, e.code) for e in entries] == [("study", "", code) for code in codes]
    assert all(detail in entry.detail for entry in entries)


def test_two_tube_voltages_of_the_same_slices_are_noted():
    low, high = series_of("a", 32, 5.0, kvp=80.0), series_of("b", 32, 5.0, kvp=140.0)
    (entry,) = kind_entries(low, (), [low, high])
    assert (entry.code, entry.detail) == (Code.SERIES_KIND, "series 's' (a) is of one tube voltage of two")
    angiography = series_of("b", 32, 5.0, kvp=140.0, contrast=True)
    assert kind_entries(low, (), [low, angiography]) == []
    assert kind_entries(low, (), [low, series_of("b", 20, 5.0, kvp=140.0)]) == []
    plain = series_of("b", 32, 5.0, kvp=120.0)
    assert kind_entries(plain, (), [low, high, plain]) == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["CT 5mm", "CT Plain"], "CT Plain"),  # called plain rather than not called anything
        (["CT I To S", "CT PRE CONTRAST 5MM STD"], "CT PRE CONTRAST 5MM STD"),
        (["CT 5mm-2", "CT 5mm", "CT 5mm-3"], "CT 5mm"),
        (["CT BONE", "CT POST CONTRAST"], "CT BONE"),
    ],
)
def test_names_decide_between_series_that_are_alike(names, expected):
    # The series UIDs would decide the other way round.
    order = [expected, *(name for name in names if name != expected)]
    series = {
        name: ordered(header(5 * i, path=f"s/{name}/{i}.dcm", series_uid=f"{9 - k}") for i in range(30))
        for k, name in enumerate(order)
    }
    assert chosen(*series.values())[0] == series[expected].series_uid


OTHER_PARTS = """
    CHEST CSPINE THORAX ABDOMEN PELVIS SHOULDER HIP KNEE ANKLE FOOT WRIST HAND ELBOW ARM UPPERARM LOWERLEG
    HEART CORONARYARTERY LUNG LIVER KIDNEY AORTA
"""


@pytest.mark.parametrize(
    ("description", "body_part", "other"),
    [
        *(("", part, True) for part in OTHER_PARTS.split()),
        *((text, "", True) for text in ("Spinal 3mm", "Cervical 3mm", "Lumbar 3mm", "Cardiac gated")),
        *((text, "", True) for text in ("Neck 3.0", "C-Spine")),
        ("Axial 5mm", "EXTREMITY", True),
        ("CT HEAD", "CHEST", False),  # the default of a manufacturer
        ("C-Spine", "HEAD", True),  # the description outranks the header
        ("", "HEADNECK", False),
        ("Head + Neck", "NECK", False),
        ("CT BONE", "", False),
        ("CT Plain", "SKULL", False),
        *(
            (text, "NECK", False)
            for text in ["Brain", "Skull", "Cranio", "Cerebro", "Neuro", "Kopf", "Schädel", "Hirn", "Crâne"]
        ),
        ("Alarm shipped", "", False),  # arm, hip
    ],
)
def test_another_body_part_ranks_behind_the_head(description, body_part, other):
    one = series_of("a", 32, 5.0, description=description, body_part=body_part)
    head = series_of("z", 30, 5.0, kernel="BONE")
    assert [s.series_uid for s in rank_series([one, head])] == (["z", "a"] if other else ["a", "z"])
    assert (", 1 of another body part" in reason_for(head, [one, head])) == other


def test_uid_kernel_and_path_decide_last():
    places = [("0", "C", "4"), ("1", "A", "2"), ("1", "A", "3"), ("1", "B", "1")]
    series = [ordered(stack(range(0, 150, 5), series_uid=u, kernel=k, path=p)) for u, k, p in places]
    for seed in range(5):
        assert rank_series(random.Random(seed).sample(series, 4)) == series


def test_reasons_and_entries_of_any_choice():
    thick, thin = series_of("a", 32, 5.0), series_of("b", 250, 0.625)
    post = series_of("c", 32, 5.0, contrast=True)
    series = [post, thin, thick]
    others = "1 of 3 series are post-contrast, bone, spectral or not axial"
    of_thin = f"plain, 0.6 mm, 250 slices, 156 mm; {others}; number 2 in order of preference"
    assert reason_for(thin, series) == of_thin
    # The plain ones cover a head, so that their length is no reason.
    of_post = f"post-contrast, 5.0 mm, 32 slices, 155 mm; {others}; number 3 in order of preference"
    assert reason_for(post, series) == of_post
    details = [
        "series 's' (c), 32 files: post-contrast, 5.0 mm, 32 slices, 155 mm",
        "series 's' (a), 32 files: plain, 5.0 mm, 32 slices, 155 mm",
    ]
    entries = [LedgerEntry("study", "s/0-0.dcm", Code.SERIES_NOT_CHOSEN, detail) for detail in details]
    assert not_chosen(thin, series) == entries
    _, reason = chosen(post, series_of("b", 2, 5.0))
    assert reason.endswith("and the plain ones cover less than 60 mm")
    chest = series_of("a", 32, 5.0, body_part="CHEST")  # never refused
    assert reason_for(chest, [chest]) == "plain, 5.0 mm, 32 slices, 155 mm; the only series"


@pytest.mark.parametrize(
    ("change", "expected"), [({"contrast": True}, "post-contrast"), ({"kernel": "BONE"}, "bone")]
)
def test_the_kind_of_most_slices_counts(change, expected):
    def mixed(n: int) -> Series:
        return ordered(header(5 * i, number=i, **(change if i < n else {})) for i in range(30))

    assert [kind(mixed(n)) for n in (1, 15, 16)] == ["plain", "plain", expected]
    detail = f"is {expected} in 15 of 30 slices"
    assert [(e.code, detail in e.detail) for e in kind_entries(mixed(15))] == [(Code.SERIES_KIND, True)]


@pytest.mark.parametrize(("degrees", "expected"), [(0, "plain"), (44, "plain"), (46, "not axial")])
def test_a_gantry_may_tilt_by_45_degrees(degrees, expected):
    assert kind(ordered(tilted(k, degrees) for k in range(30))) == expected


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ("BONEPLUS EDGE LUNG DETAIL D E FC30 FC81\\FC81 H70h Hr64h\\3 YD", "bone"),
        ("STANDARD STD+ SOFT FC68 FC21 H31s Hc40f UB EB", "plain"),
    ],
)
def test_kernels(kernels, expected):
    for kernel in kernels.split():
        assert kind(series_of("a", 32, 5.0, kernel=kernel)) == expected, kernel


def agents(description: str, *, contrast: bool = False, no_contrast: bool = False) -> Series:
    return series_of("a", 32, 5.0, description=description, contrast=contrast, no_contrast=no_contrast)


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (agents("HEAD POST CONTRAST", no_contrast=True), "plain"),
        (agents("HEAD WITHOUT CONTRAST", contrast=True), "post-contrast"),
        (agents("HEAD POST CONTRAST"), "post-contrast"),
    ],
)
def test_header_outranks_description(series, expected):
    assert kind(series) == expected
    noted = [entry.detail for entry in kind_entries(series) if entry.code == Code.CONTRAST_UNSURE]
    contradicted = series.headers[0].contrast or series.headers[0].no_contrast
    assert ["the header counts" in one for one in noted] == [True] * contradicted


def test_words_of_the_site_decide():
    series = series_of("a", 32, 5.0, description="Kepala protokol 7")
    site = (("protokol 7", "contrast"),)
    assert kind(series) == "plain"
    assert reason_for(series, [series], site).startswith("post-contrast")
    assert [entry.code for entry in kind_entries(series, site)] == [Code.SERIES_KIND]
    assert rank_series([series, series_of("z", 3, 30.0)], site)[0].series_uid == "z"
