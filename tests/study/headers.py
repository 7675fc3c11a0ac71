"""Headers of made slices, and the series they make."""

import math
import random

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, StoredPixels
from ich_mil.study.geometry.order import Series
from ich_mil.study.series import group_series

PIXELS = StoredPixels("1.2.840.10008.1.2.1", 1000, 1, 16, 16, True, 1.0, 0.0, None)
AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def header(z: float, *, number: int | None = None, **changes: object) -> SliceHeader:
    values: dict[str, object] = {
        "path": f"s/{z:g}-{number}.dcm",
        "frame": 0,
        "sop_uid": f"1.{changes.get('series_uid')}.{z:g}.{number}",
        "study_uid": "study",
        "series_uid": "series",
        "patient_id": "P1",
        "rows": 512,
        "columns": 512,
        "position": (-125.0, -125.0, z),
        "orientation": AXIAL,
        "spacing": (0.5, 0.5),
        "thickness": None,
        "instance_number": number,
        "acquisition": None,
        "description": "",
        "kernel": "",
        "body_part": "",
        "contrast": False,
        "pixels": PIXELS,
        "notes": (),
    }
    return SliceHeader(**(values | changes))  # type: ignore[arg-type]


def stack(positions, **changes: object) -> list[SliceHeader]:
    return [header(z, number=i, **changes) for i, z in enumerate(positions)]


def ordered(headers) -> Series:
    (study,) = group_series(headers).values()
    (series,) = study
    return series


def series_of(uid: str, n: int, step: float, **changes: object) -> Series:
    return ordered(stack([step * i for i in range(n)], series_uid=uid, **changes))


def codes(series: Series) -> list[Code]:
    return [entry.code for entry in series.entries]


def tilted(k: int, degrees: float, *, step: float = 5.0, **changes: object) -> SliceHeader:
    """Slice k of a gantry tilted about x: the couch moves along z, not along the normal."""
    angle = math.radians(degrees)
    orientation = (1.0, 0.0, 0.0, 0.0, math.cos(angle), -math.sin(angle))
    return header(step * k, number=k, orientation=orientation, **changes)


def tilt_slab(zs, degrees: float, start: int, **changes: object) -> list[SliceHeader]:
    """Slices centred on (0, 0, z), the gantry turned: 512 pixels of 0.5 mm, 127.75 mm to the centre."""
    angle, to_centre = math.radians(degrees), 127.75
    row, column = (1.0, 0.0, 0.0), (0.0, math.cos(angle), -math.sin(angle))
    slices = []
    for i, z in enumerate(zs):
        position = (-to_centre, -to_centre * column[1], z - to_centre * column[2])
        slices.append(header(z, number=start + i, position=position, orientation=(*row, *column), **changes))
    return slices


def parts(*slices: list[SliceHeader]) -> list[tuple[str, int, list[str]]]:
    """Each series of the study: UID, slices, details of the entries that join."""
    headers = [one for some in slices for one in some]
    (study,) = group_series(headers).values()
    for seed in range(3):
        random.Random(seed).shuffle(headers)
        assert group_series(headers)["study"] == study
    joins = [[e.detail for e in s.entries if e.code == Code.SERIES_JOINED] for s in study]
    assert sum(len(s.headers) for s in study) + sum(
        e.code == Code.DUPLICATE for s in study for e in s.entries
    ) == len(headers)
    return [(s.series_uid, len(s.headers), join) for s, join in zip(study, joins, strict=True)]


def part(uid: str, *positions, thickness: float | None = 5.0, **changes: object) -> list[SliceHeader]:
    return stack(positions, series_uid=uid, thickness=thickness, **changes)
