"""Which series stands for a study, the reason in words, and the lines for the others."""

import random
from dataclasses import replace

import pytest

from ich_mil.dicom.geometry.order import Series
from ich_mil.dicom.series_choice import kind_entries, not_chosen, rank_series, reason_for
from ich_mil.ledger import Code, LedgerEntry
from tests.dicom.headers import PIXELS, header, ordered, series_of, stack, tilted


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
    assert reason == "plain, 5.0 mm, 32 slices, 155 mm; 2 of 4 series are post-contrast, bone or not axial"


def test_entry_for_a_series_that_is_not_chosen():
    other = ordered(
        [*stack([0, 5, 10], series_uid="b", description="CT BONE"), header(5, number=9, series_uid="b")]
    )
    best = series_of("a", 32, 5.0)
    (entry,) = not_chosen(best, [other, best])
    assert (entry.scan, entry.file, entry.code) == ("study", "s/0-0.dcm", Code.SERIES_NOT_CHOSEN)
    assert entry.detail == "series 'CT BONE' (b), 4 files: bone, 5.0 mm, 3 slices, 10 mm, 1 duplicate"


def test_the_only_series_is_always_chosen():
    assert chosen(series_of("a", 3, 10, description="CT BONE POST CONTRAST"))[0] == "a"


def test_no_series_raises():
    with pytest.raises(ValueError, match="at least one series"):
        rank_series([])
    with pytest.raises(ValueError, match="series a is not among the 1 series of the study"):
        reason_for(series_of("a", 3, 5.0), [series_of("b", 3, 5.0)])


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, kernel="BONEPLUS")),
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, kernel="H60s")),
        (series_of("z", 32, 5.0, kernel="FC68"), series_of("a", 40, 5.0, kernel="FC81")),
        (series_of("z", 32, 5.0, kernel="H31s"), series_of("a", 40, 5.0, kernel="Hr64h\\3")),
        (series_of("z", 22, 7.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 260, 0.625)),
        (series_of("z", 50, 2.5), series_of("a", 260, 0.625)),
        (series_of("z", 24, 7.0), series_of("a", 260, 0.625)),
        (series_of("z", 260, 0.625), series_of("a", 17, 10.0)),
        (series_of("z", 32, 5.0), series_of("a", 24, 7.0)),
        (series_of("z", 22, 5.0), series_of("a", 27, 6.0)),
        (series_of("z", 260, 0.625), series_of("a", 20, 8.0)),
        (series_of("z", 260, 0.625), series_of("a", 17, 10.0, description="CT Plain")),
        (series_of("z", 260, 0.625), series_of("a", 14, 5.0)),  # 65 mm are not a head
        (series_of("z", 32, 5.0), series_of("a", 31, 5.0)),
        (series_of("z", 32, 5.0, kernel="BONE"), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 18, 5.0), series_of("a", 32, 5.0, contrast=True)),  # 85 mm plain
        (series_of("z", 32, 5.0, contrast=True), series_of("a", 2, 5.0)),  # a plain stub
        (series_of("z", 32, 5.0, contrast=True), coronal("a", 60, 4.0)),
        (series_of("z", 260, 0.625), ordered(stack([0, 5, 10, 15, 40, *range(45, 150, 5)], series_uid="a"))),
        (
            series_of("z", 30, 5.0),
            ordered([*stack(range(0, 160, 5), series_uid="a"), header(5, number=99, series_uid="a")]),
        ),
        (  # steps of 4 mm, then of 5
            series_of("z", 30, 5.0),
            ordered(stack([*range(0, 80, 4), *range(80, 160, 5)], series_uid="a")),
        ),
        (  # 90 mm without a gap are not a head
            ordered(stack([0, 5, 10, 15, 40, *range(45, 150, 5)], series_uid="z")),
            series_of("a", 19, 5.0),
        ),
        (  # called plain, though with a duplicate
            ordered([header(5 * i, series_uid="z", description="CT Plain") for i in (3, *range(30))]),
            series_of("a", 30, 5.0),
        ),
        (
            series_of("z", 32, 5.0, path="s/CT-2/1.dcm", sop_uid="1"),
            series_of("a", 31, 5.0, path="s/CT/1.dcm", sop_uid="1"),
        ),
    ],
)
def test_preferences(better, worse):
    assert chosen(better, worse)[0] == "z"


def test_reason_names_the_lack_of_a_plain_series():
    _, reason = chosen(series_of("a", 32, 5.0, contrast=True), series_of("b", 2, 5.0))
    assert reason.startswith("post-contrast, 5.0 mm, 32 slices, 155 mm; 1 of 2 series are post-contrast")
    assert reason.endswith("and the plain ones cover less than 60 mm")


def test_coronal_series_are_ordered_and_named():
    series = coronal("a", 40, 4.0)
    assert (len(series.headers), series.spacing, series.extent) == (40, 4.0, 156.0)
    assert series.entries == ()
    assert reason_for(series, [series]).startswith("not axial, 4.0 mm, 40 slices, 156 mm")


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("CT PLAIN", "plain"),
        ("CT PRE CONTRAST THIN", "plain"),
        ("Non-Contrast Head", "plain"),
        ("HEAD W/O CONTRAST", "plain"),
        ("UNENHANCED", "plain"),
        ("HEAD_WITHOUT_IV_CONTRAST", "plain"),
        ("Post Fossa 2.5mm", "plain"),
        ("CT POST CONTRAST-2", "post-contrast"),
        ("CE_5MM", "post-contrast"),
        ("HEAD C+", "post-contrast"),
        ("CTA HEAD", "post-contrast"),
        ("5mm POST", "post-contrast"),
        ("CT BONE", "bone"),
        ("Temporal bones", "bone"),
        ("BONE POST CONTRAST", "post-contrast bone"),
        ("Schädel nativ", "plain"),
        ("Kopf ohne KM", "plain"),
        ("Kopf mit KM", "post-contrast"),
        ("HEAD NO IV CONTRAST", "plain"),
        ("without and with contrast", "post-contrast"),
        ("Post Op 5mm", "plain"),
        ("Circle of Willis", "post-contrast"),
        ("AX MIP 10mm", "post-contrast"),
        ("MinIP 5mm", "post-contrast"),
        ("Head MIN IP", "post-contrast"),
        ("Subtraction 1.0", "post-contrast"),
        ("DE Iodine", "post-contrast"),
        ("DE VNC 5.0", "post-contrast"),
        ("Virtual Non-Contrast", "post-contrast"),
        ("virtual non contrast 5mm", "post-contrast"),
        ("VIRTUAL_UNENHANCED", "post-contrast"),
        ("PreMonitoring", "post-contrast"),
        ("HEAD W", "post-contrast"),
        ("HEAD W-2", "post-contrast"),
        ("Head with 5mm", "post-contrast"),
        ("Head With", "post-contrast"),
        ("HEAD WWO", "post-contrast"),
        ("HEAD WWO CONTRAST 5MM STD", "post-contrast"),
        ("Head W AND WO contrast 5.0", "post-contrast"),
        ("Head Delayed", "post-contrast"),
        ("HEAD IV+", "post-contrast"),
        ("Cranio con mdc", "post-contrast"),
        ("CEREBRO CON CIV", "post-contrast"),
        ("Post processing", "plain"),
        ("Postprocess", "plain"),
        ("post-processed 5mm", "plain"),
        ("Head WO", "plain"),
        ("HEAD WITHOUT", "plain"),
        ("HEAD W/O", "plain"),
        ("Head with 3D", "plain"),
        ("BRAIN W 80 L 40", "plain"),
        ("Cranio senza mdc", "plain"),
        ("Cranio senza contrasto", "plain"),
        ("CEREBRO SIN CIV", "plain"),
        ("HEAD IV-", "plain"),
        # as CQ500 names its folders
        ("CT Plain", "plain"),
        ("CT Plain THIN", "plain"),
        ("CT PLAIN THIN", "plain"),
        ("CT Thin Plain", "plain"),
        ("CT Plain 3mm", "plain"),
        ("CT 55mm Plain", "plain"),
        ("CT 3.753.75mm Plain", "plain"),
        ("CT PRE CONTRAST 5MM STD", "plain"),
        ("CT Thin Stnd", "plain"),
        ("CT I To S", "plain"),
        ("CT 0.625mm", "plain"),
        ("CT 0.625mm-2", "plain"),
        ("CT 5mm", "plain"),
        ("CT 2.55mm", "plain"),
        ("CT 4cc sec 150cc D3D on", "post-contrast"),
        ("CT 4cc sec 150cc D3D on-2", "post-contrast"),
        ("CT POST CONTRAST", "post-contrast"),
        ("CT 5mm POST CONTRAST", "post-contrast"),
        ("CT 55mm Contrast", "post-contrast"),
        ("CT ORAL IV", "post-contrast"),
        ("CT ORAL", "post-contrast"),
        ("CT Thin Details", "bone"),
        ("CT Thin Bone", "bone"),
        ("CT PRE CONTRAST BONE", "bone"),
        # words of other places
        ("Schädel Knochen", "bone"),
        ("OSSEOUS", "bone"),
        ("Temporal 0.6", "bone"),
        ("Petrous 0.6", "bone"),
        ("IAC 0.6", "bone"),
        ("Kopf Kontrast", "post-contrast"),
        ("HEAD +C 5mm", "post-contrast"),
        ("HEAD 80 ML", "post-contrast"),
        ("CRANE INJECTE", "post-contrast"),
        ("Bolus 10mm", "post-contrast"),
        ("HEAD IV-2", "post-contrast"),
        ("Head With 2.5 mm-2", "post-contrast"),
        ("Cranio dopo mdc", "post-contrast"),
        ("Angio 1mm", "post-contrast"),
        ("Venous 1mm", "post-contrast"),
        ("Arterial 1mm", "post-contrast"),
        ("PERFUSION 5mm", "post-contrast"),
        ("Enhanced 5mm", "post-contrast"),
        ("Carotid 1mm", "post-contrast"),
        ("HEAD W AND WO STD", "post-contrast"),
        ("Head with and without STD", "post-contrast"),
        ("HEAD WO AND W STD", "post-contrast"),
        ("Head without and with STD", "post-contrast"),
        ("Head without & with STD", "post-contrast"),
        ("HEAD WO+W STD", "post-contrast"),
        *((f"Post {word} 5mm", "plain") for word in ("trauma", "surgery", "EVD", "coiling", "clipping")),
        *((f"Post {word} 5mm", "plain") for word in ("shunt", "lysis", "tPA")),
        ("Head before contrast", "plain"),
        ("Crane sans injection", "plain"),
        ("Craneo sin contraste", "plain"),
        ("Cranio sem contraste", "plain"),
        ("CTNONCONTRAST", "plain"),
        ("Kopf ohne Kontrastmittel", "plain"),
        ("HEAD NON CE", "plain"),
        ("HEAD NO IV", "plain"),
    ],
)
def test_descriptions(description, expected):
    assert kind(series_of("a", 32, 5.0, description=description)) == expected
    in_folder = [header(5 * i, path=f"scan/{description.replace('/', '')}/{i}.dcm") for i in range(30)]
    assert kind(ordered(in_folder)) == expected


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("HEAD W/", "post-contrast"),
        ("HEAD W/ 5MM", "post-contrast"),
        ("HEAD W/WO", "post-contrast"),
        ("HEAD W/WO CONTRAST STD", "post-contrast"),
        ("HEAD W/O & W/ CONTRAST", "post-contrast"),
        ("HEAD WO/W", "post-contrast"),
        ("HEAD W/O/W STD", "post-contrast"),
        ("HEAD W/O AND W/ STD", "post-contrast"),
        ("CRANIO C/C", "post-contrast"),
        ("CEREBRO C/ CIV", "post-contrast"),
        ("HEAD W/O", "plain"),
        ("HEAD W/O 5MM", "plain"),
        ("HEAD W/O CONTRAST STD", "plain"),
        ("CRANIO S/C", "plain"),
    ],
)
def test_descriptions_with_a_slash(description, expected):
    assert kind(series_of("a", 32, 5.0, description=description)) == expected


def test_a_series_longer_than_a_head_stands_behind():
    body, head = series_of("a", 330, 5.0), series_of("z", 25, 5.0)
    assert (body.extent, head.extent) == (1645, 120)
    assert chosen(body, head)[0] == "z"
    assert chosen(body, series_of("z", 19, 5.0))[0] == "z"  # 90 mm of head are better, too
    assert chosen(series_of("a", 53, 5.0), head)[0] == "a"  # 260 mm may be a head
    assert chosen(series_of("a", 54, 5.0), head)[0] == "z"
    assert chosen(body, series_of("z", 25, 5.0, contrast=True))[0] == "a"  # a preference among like kinds


@pytest.mark.parametrize(
    ("series", "detail"),
    [
        (series_of("a", 32, 5.0, contrast=True), "series 's' (a) is post-contrast"),
        (
            series_of("a", 32, 5.0, description="CT BONE POST"),
            "series 'CT BONE POST' (a) is post-contrast, bone",
        ),
        (coronal("a", 40, 4.0), "series 's' (a) is not axial"),
        (
            series_of("a", 80, 5.0, body_part="CHEST"),
            "series 's' (a) is of another body part, longer than a head (395 mm)",
        ),
        (series_of("a", 54, 5.0), "series 's' (a) is longer than a head (265 mm)"),
    ],
)
def test_the_kind_of_what_is_chosen_is_noted(series, detail):
    assert kind_entries(series) == [LedgerEntry("study", "", Code.SERIES_KIND, detail)]


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"contrast": True}, "series 's' (a) is post-contrast in 16 of 32 slices"),
        ({"kernel": "BONE"}, "series 's' (a) is bone in 16 of 32 slices"),
    ],
)
def test_a_series_of_which_a_half_is_of_another_kind_is_noted(changes, detail):
    """Not the majority: it is chosen as a plain one."""
    half = series_of("a", 32, 5.0)
    headers = [replace(one, **changes) if i % 2 else one for i, one in enumerate(half.headers)]
    mixed = replace(half, headers=tuple(headers))
    assert kind_entries(mixed) == [LedgerEntry("study", "", Code.SERIES_KIND, detail)]


def test_a_plain_head_needs_no_note():
    for n in (32, 53):
        assert kind_entries(series_of("a", n, 5.0, description="CT Plain")) == []


def test_a_part_of_a_head_is_noted():
    detail = "14 slices cover 65 mm, a head needs 100 mm"
    series = series_of("a", 14, 5.0, description="CT Plain")
    assert kind_entries(series) == [LedgerEntry("study", "", Code.PART_OF_HEAD, detail)]


def test_folder_stands_for_a_missing_description():
    series = ordered([header(5 * i, path=f"scan/CT BONE/CT{i:06d}.dcm") for i in range(30)])
    assert reason_for(series, [series]).startswith("bone, 5.0 mm")


def test_reformats_of_cq500_are_told_by_their_orientation():
    axial = series_of("z", 300, 0.625, description="CT SPO axi")
    assert [s.series_uid for s in rank_series([coronal("cor", 60, 3.0), axial])] == ["z", "cor"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["CT 5mm", "CT Plain"], "CT Plain"),  # called plain rather than not called anything
        (["CT I To S", "CT PRE CONTRAST 5MM STD"], "CT PRE CONTRAST 5MM STD"),
        (["CT 5mm-2", "CT 5mm", "CT 5mm-3"], "CT 5mm"),
        (["CT Plain-2", "CT 4cc sec 150cc D3D on"], "CT Plain-2"),
        (["CT 4cc sec 150cc D3D on", "CT 4cc sec 150cc D3D on-2"], "CT 4cc sec 150cc D3D on"),
        (["CT BONE", "CT POST CONTRAST"], "CT BONE"),
        *((["CT 5mm", name], name) for name in ("NCCT", "Kopf nativ", "Crane native", "CT -C")),
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


@pytest.mark.parametrize(
    ("description", "body_part", "other"),
    [
        ("", "CHEST", True),
        ("", "CSPINE", True),
        *(("", part, True) for part in ("THORAX", "ABDOMEN", "PELVIS", "SHOULDER", "HIP", "KNEE", "ANKLE")),
        *(("", part, True) for part in ("FOOT", "WRIST", "HAND", "ELBOW", "ARM", "UPPERARM", "LOWERLEG")),
        *(("", part, True) for part in ("HEART", "CORONARYARTERY", "LUNG", "LIVER", "KIDNEY", "AORTA")),
        *((text, "", True) for text in ("Spinal 3mm", "Cervical 3mm", "Lumbar 3mm", "Cardiac gated")),
        ("Neck 3.0", "", True),
        ("C-Spine", "", True),
        ("Axial 5mm", "EXTREMITY", True),
        ("CT HEAD", "CHEST", False),  # the maker's default, not looked at by anybody
        ("C-Spine", "HEAD", False),
        ("", "HEADNECK", False),
        ("Head + Neck", "NECK", False),
        ("CT BONE", "", False),
        ("CT Plain", "SKULL", False),
        *((f"{text} 5mm", "NECK", False) for text in ("Brain", "Skull", "Cranio", "Cerebro", "Neuro")),
        *((f"{text} 5mm", "NECK", False) for text in ("Kopf", "Schädel", "Schaedel", "Hirn")),
        *((f"{text} 5mm", "NECK", False) for text in ("Crane", "Crâne")),
        ("Alarm shipped", "", False),  # arm, hip
    ],
)
def test_another_body_part_ranks_behind_the_head(description, body_part, other):
    one = series_of("a", 32, 5.0, description=description, body_part=body_part)
    head = series_of("z", 30, 5.0, kernel="BONE")
    assert [s.series_uid for s in rank_series([one, head])] == (["z", "a"] if other else ["a", "z"])
    assert (", 1 of another body part" in reason_for(head, [one, head])) == other


def test_another_body_part_is_never_refused():
    chest = series_of("a", 32, 5.0, body_part="CHEST")
    assert reason_for(chest, [chest]) == "plain, 5.0 mm, 32 slices, 155 mm; the only series"
    assert chosen(chest, series_of("b", 3, 5.0))[0] == "a"  # a stub of the head helps nobody


def test_the_uid_decides_last():
    assert chosen(series_of("b", 32, 5.0, kernel="A"), series_of("a", 32, 5.0, kernel="B"))[0] == "a"


def test_of_series_under_one_uid_the_kernel_decides_then_the_path():
    series = [
        ordered(stack(range(0, 150, 5), kernel=kernel, path=path))
        for kernel, path in (("A", "2"), ("A", "3"), ("B", "1"))
    ]
    for seed in range(5):
        found = random.Random(seed).sample(series, 3)
        assert rank_series(found) == series


def test_every_series_in_order():
    series = [
        series_of("stub", 5, 5.0, description="CT Plain"),
        series_of("thin", 250, 0.625, description="CT Plain THIN"),
        series_of("post", 32, 5.0, description="CT POST CONTRAST"),
        series_of("bone", 32, 5.0, description="CT BONE"),
        series_of("chest", 80, 5.0, description="CT 5mm", body_part="CHEST"),
        series_of("thick", 32, 5.0, description="CT Plain"),
        coronal("cor", 60, 3.0),
        series_of("7mm", 22, 7.0, description="CT Plain"),
    ]
    expected = ["thick", "7mm", "thin", "bone", "post", "cor", "chest", "stub"]
    for seed in range(5):
        random.Random(seed).shuffle(series)
        assert [one.series_uid for one in rank_series(series)] == expected


def test_a_later_series_has_a_reason_and_names_the_others():
    thick, thin = series_of("a", 32, 5.0), series_of("b", 250, 0.625)
    post = series_of("c", 32, 5.0, contrast=True)
    series = [post, thin, thick]
    assert reason_for(thin, series) == (
        "plain, 0.6 mm, 250 slices, 156 mm; 1 of 3 series are post-contrast, bone or not axial; "
        "number 2 in order of preference"
    )
    # The plain ones cover a head, so that their length is no reason.
    assert reason_for(post, series) == (
        "post-contrast, 5.0 mm, 32 slices, 155 mm; 1 of 3 series are post-contrast, bone or not axial; "
        "number 3 in order of preference"
    )
    assert not_chosen(thin, series) == [
        LedgerEntry(
            "study",
            "s/0-0.dcm",
            Code.SERIES_NOT_CHOSEN,
            "series 's' (c), 32 files: post-contrast, 5.0 mm, 32 slices, 155 mm",
        ),
        LedgerEntry(
            "study",
            "s/0-0.dcm",
            Code.SERIES_NOT_CHOSEN,
            "series 's' (a), 32 files: plain, 5.0 mm, 32 slices, 155 mm",
        ),
    ]


def test_frames_of_one_file_count_as_one_file():
    stored = replace(PIXELS, frames=30)
    multi = ordered(
        header(5 * k, number=1, path="multi.dcm", frame=k, sop_uid="1.2", pixels=stored, series_uid="m")
        for k in range(30)
    )
    (entry,) = not_chosen(series_of("a", 32, 5.0), [multi])
    assert entry.detail == "series '' (m), 1 files: plain, 5.0 mm, 30 slices, 145 mm"


def test_the_kernel_of_most_slices_counts():
    def mixed(n_bone: int) -> Series:
        return ordered(header(5 * i, number=i, kernel="BONE" if i < n_bone else "SOFT") for i in range(30))

    assert [kind(mixed(n)) for n in (10, 15, 16, 20)] == ["plain", "plain", "bone", "bone"]


def test_the_contrast_of_most_slices_counts():
    def mixed(n_with: int) -> Series:
        return ordered(header(5 * i, number=i, contrast=i < n_with) for i in range(30))

    assert [kind(mixed(n)) for n in (1, 15, 16)] == ["plain", "plain", "post-contrast"]


@pytest.mark.parametrize(("degrees", "expected"), [(0, "plain"), (44, "plain"), (46, "not axial")])
def test_a_gantry_may_tilt_by_45_degrees(degrees, expected):
    assert kind(ordered(tilted(k, degrees) for k in range(30))) == expected


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("BONEPLUS", "bone"),
        ("EDGE", "bone"),
        ("LUNG", "bone"),
        ("DETAIL", "bone"),
        ("D", "bone"),
        ("E", "bone"),
        ("FC30", "bone"),
        ("FC81\\FC81", "bone"),
        ("H70h", "bone"),
        ("Hr64h\\3", "bone"),
        ("YD", "bone"),
        ("STANDARD", "plain"),
        ("STD+", "plain"),
        ("SOFT", "plain"),
        ("FC68", "plain"),
        ("FC21", "plain"),
        ("H31s", "plain"),
        ("Hc40f", "plain"),
        ("UB", "plain"),
        ("EB", "plain"),
    ],
)
def test_kernels(kernel, expected):
    assert kind(series_of("a", 32, 5.0, kernel=kernel)) == expected


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
def test_the_header_outranks_the_description_and_a_contradiction_is_noted(series, expected):
    assert kind(series) == expected
    noted = [entry.detail for entry in kind_entries(series) if entry.code == Code.CONTRAST_UNSURE]
    contradicted = series.headers[0].contrast or series.headers[0].no_contrast
    assert ["the header counts" in one for one in noted] == [True] * contradicted


def test_what_is_said_plain_by_its_header_goes_before_what_says_nothing():
    silent = series_of("a", 30, 5.0)
    assert chosen(silent, series_of("z", 30, 5.0, no_contrast=True))[0] == "z"


def test_the_enhanced_series_does_not_stand_for_the_scan():
    plain, enhanced = (
        series_of("z", 30, 5.0, description="头部平扫"),
        series_of("a", 32, 5.0, description="头部增强"),
    )
    assert chosen(plain, enhanced)[0] == "z"


def test_an_unknown_word_is_noted_and_does_not_decide():
    series = series_of("a", 32, 5.0, description="Kepala dengan kontras")
    assert kind(series) == "plain"
    (entry,) = kind_entries(series)
    assert (entry.code, "'dengan'" in entry.detail) == (Code.CONTRAST_UNSURE, True)
    assert kind_entries(series_of("a", 32, 5.0, description="Kepala dengan kontras", no_contrast=True)) == []
    assert "'dengan'" in not_chosen(series_of("b", 32, 5.0), [series])[0].detail
    site = (("kepala", "other"), ("dengan", "with"), ("kontras", "agent"))
    assert reason_for(series, [series], site).startswith("post-contrast")
    assert [entry.code for entry in kind_entries(series, site)] == [Code.SERIES_KIND]
    assert rank_series([series, series_of("z", 3, 30.0)], site)[0].series_uid == "z"


def test_unknown_words_of_a_folder_are_passed_over():
    series = ordered([header(5 * i, path=f"scan/qwert/{i}.dcm") for i in range(30)])
    assert kind_entries(series) == []
