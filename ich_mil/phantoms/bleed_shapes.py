"""Random shapes of the five subtypes of bleed in a synthetic head.

In: a numpy Generator, a `Head`, a size factor. Out: a `Bleed`, whose shape is a signed distance function of
the fields of a slice. An epidural bleed is a lens below the vault, a subdural bleed a crescent, an
intraparenchymal bleed a lump. Subarachnoid blood fills sulci or cisterns. Intraventricular blood settles at
the back of the ventricles, because the patient is supine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ich_mil.phantoms.head import Head, Image, draw_waves, vault_depth, wave_sum
from ich_mil.phantoms.tissue import Fields

SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
BLOOD_HU = (68.0, 78.0)
"""Range of the mean HU of a bleed; the texture varies by ±4 HU. Acute blood has 50-80 HU, brain 25-45 HU
(Parizel et al., Eur Radiol 2001, 10.1007/s003300000800)."""
Shape = Callable[[Fields], Image]
"""Signed distance to the surface of a bleed [mm], negative inside."""


@dataclass(frozen=True)
class Bleed:
    """One bleed: index in `SUBTYPES`, shape, mean density [HU] and waves (K, 4) of the density."""

    kind: int
    shape: Shape
    hu: float
    texture: NDArray[np.float64]


def _surface_point(rng: np.random.Generator, head: Head, heights: tuple[float, float]) -> NDArray[np.float64]:
    """Draw a point on the inner table of the vault, with a height [mm] in the range `heights`."""
    height = rng.uniform(*heights)
    angle = rng.uniform(0, 2 * np.pi) if height > 0 else rng.uniform(-0.2, np.pi + 0.2)
    reach = np.linspace(5, 110, 421, dtype=np.float32)
    x, y = reach * np.float32(np.cos(angle)), reach * np.float32(np.sin(angle))
    depth = vault_depth(head, x, y, np.full_like(x, height))
    last = int(np.argmax(depth < 0))
    return np.array([x[last], y[last], height])


def _epidural(rng: np.random.Generator, head: Head, grow: float) -> Shape:
    px, py, pz = _surface_point(rng, head, (-30, 0.68 * head.axes[2])).astype(np.float32)
    thick = np.float32(rng.uniform(11, 21) * grow**0.5)
    length, tall = (np.float32(rng.uniform(20, 33) * grow), np.float32(rng.uniform(18, 32) * grow))
    norm = np.hypot(px, py)
    nx, ny = px / norm, py / norm

    def shape(f: Fields) -> Image:
        dx, dy, dz = f.x - px, f.y - py, f.z - pz
        along = (dx * ny - dy * nx) / length
        far = np.where(dx * nx + dy * ny < -45, np.float32(9), np.float32(0))
        return f.vault - thick * (1 - along**2 - (dz / tall) ** 2) + far

    return shape


def _subdural(rng: np.random.Generator, head: Head, grow: float) -> Shape:
    side = np.float32(rng.choice((-1.0, 1.0)))
    middle = np.float32(np.deg2rad(rng.uniform(-35, 35)))
    half = np.float32(np.deg2rad(rng.uniform(45, 75)))
    height, tall = np.float32(rng.uniform(-15, 48)), np.float32(rng.uniform(26, 42) * grow)
    thick = np.float32(rng.uniform(6, 12) * grow**0.5)

    def shape(f: Fields) -> Image:
        angle = np.arctan2(f.y, f.x * side)
        fade = 1 - ((angle - middle) / half) ** 2 - ((f.z - height) / tall) ** 2
        crescent = (
            f.vault - thick * np.sqrt(np.maximum(fade, 0)) + np.where(fade <= 0, np.float32(9), np.float32(0))
        )
        return np.maximum(crescent, 3 - f.x * side)

    return shape


def _intraparenchymal(rng: np.random.Generator, head: Head, grow: float) -> Shape:
    while True:
        centre = rng.uniform((-52, -62, -42), (52, 62, 58))
        deep = vault_depth(head, *(np.array([part], np.float32) for part in centre))[0]
        low = (centre[2] < -12 and centre[1] < -20) or (centre[2] < -25 and centre[1] < 20)
        if deep > 14 and abs(centre[0]) > 8 and not low:
            break
    cx, cy, cz = centre.astype(np.float32)
    rx, ry = (rng.uniform(9, 20, 2) * grow).astype(np.float32)
    rz = np.float32(rng.uniform(15, 24) * grow)
    lumps = draw_waves(rng, 4, (14, 30))

    def shape(f: Fields) -> Image:
        radius = np.sqrt(((f.x - cx) / rx) ** 2 + ((f.y - cy) / ry) ** 2 + ((f.z - cz) / rz) ** 2)
        away = (radius - 1) * min(rx, ry) + 1.0 * wave_sum(lumps, f.x, f.y, f.z)
        return np.maximum(away, 2.5 - f.depth)

    return shape


def _subarachnoid(rng: np.random.Generator, head: Head, grow: float) -> Shape:
    if rng.random() < 0.4:
        centre = np.array([rng.normal(0, 8), rng.normal(-6, 6), rng.uniform(-14, 2)])
        reach = np.array([48.0, 42.0, 24.0])
    else:
        centre = _surface_point(rng, head, (-5, 0.75 * head.axes[2]))
        reach = rng.uniform((34, 34, 24), (50, 50, 36))
    cx, cy, cz = centre.astype(np.float32)
    rx, ry, rz = (reach * grow).astype(np.float32)
    swell = np.float32(rng.uniform(0.8, 1.4) * grow)

    def shape(f: Fields) -> Image:
        radius = np.sqrt(((f.x - cx) / rx) ** 2 + ((f.y - cy) / ry) ** 2 + ((f.z - cz) / rz) ** 2)
        return np.maximum(f.cistern - swell * (1.4 - radius), 12 * (radius - 1))

    return shape


def _intraventricular(rng: np.random.Generator, head: Head, grow: float) -> Shape:
    level = np.float32(rng.uniform(-15, 32) - 25 * (grow - 1))
    side = rng.choice((-1.0, 0.0, 0.0, 1.0)) if grow < 1.15 else 0.0

    def shape(f: Fields) -> Image:
        away = np.maximum(f.ventricle - np.float32(0.6 * grow), level - f.y)
        return np.maximum(away, -np.float32(side) * f.x) if side else away

    return shape


_DRAW = dict(
    zip(SUBTYPES, (_epidural, _intraparenchymal, _intraventricular, _subarachnoid, _subdural), strict=True)
)


def draw_bleed(rng: np.random.Generator, head: Head, name: str, grow: float) -> Bleed:
    """Draw a bleed of the subtype `name`; lengths grow with `grow`."""
    shape = _DRAW[name](rng, head, grow)
    return Bleed(SUBTYPES.index(name), shape, float(rng.uniform(*BLOOD_HU)), draw_waves(rng, 4, (10, 40)))
