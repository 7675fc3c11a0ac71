"""Bleeds in a synthetic head, and the study that is cut from it.

In: a Generator, the names of the bleeds, a `Site`. Out: a `Phantom`: int16 HU, lowest slice first, and for
each pixel which bleed it shows. Blood is laid over the finished head: outside the masks every pixel is what
it is without it, and inside them the noise is what it would have been.

Acute blood has 50-80 HU, brain 25-45 (Parizel et al., Eur Radiol 2001, 10.1007/s003300000800). Epidural
blood is a lens under the vault, subdural a crescent, intraparenchymal a lump, subarachnoid fills sulci or
cisterns, intraventricular lies in the back of the ventricles because the patient lies on the back.

Shapes: n slices, H = W = size pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ich_mil.dicom.phantom_head import Head, Look, Site, draw_head, draw_look, draw_waves
from ich_mil.dicom.phantom_tissue import (
    HU_AIR,
    HU_MAX,
    Fields,
    Image,
    draw_noise,
    slice_fields,
    vault_depth,
    wave_sum,
)

SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
SLICES = (24, 57)
"""Fewest and most slices of a study: the range of the literature's RSNA subset."""
BLOOD_HU = (68.0, 78.0)
"""Range of a bleed's mean HU; it varies by ±4 inside."""
MIN_FRACTION = 0.006
"""Blood on a slice below this share of the scan's largest brain area is left out, so that labels are
clean."""
PEAK_FRACTION = 0.04
"""A bleed must reach this share of the largest brain area on one slice."""
MIN_POSITIVE_SLICES = 5
EDGE_MM = 1.0
"""Half width of the soft edge of a bleed [mm]."""
MIN_WEIGHT = 0.3
"""A pixel with less blood than this stays as it was."""
MIN_RISE = 6.0
"""A pixel that blood would brighten by less than this stays as it was [HU]."""
TRIES = 80
MIN_SIZE = 16
"""Rows and columns below this show no head."""

Shape = Callable[[Fields], Image]
"""Signed distance to a bleed's surface, negative inside [mm]."""


@dataclass(frozen=True)
class Bleed:
    """One bleed: its place in `SUBTYPES`, its shape and its density [HU]."""

    kind: int
    shape: Shape
    hu: float
    texture: NDArray[np.float64]


@dataclass(frozen=True)
class SeriesPlan:
    """How a head is cut: number of slices, or their distance [mm]; bone kernel; contrast agent."""

    n_slices: int | None = None
    spacing: float | None = None
    bone: bool = False
    contrast: bool = False


@dataclass(frozen=True)
class Phantom:
    """One synthetic series.

    Attributes:
        hu: (n, H, W) int16 HU, lowest slice first.
        masks: (n, H, W) uint8, 0 = no blood, 1 + index in `SUBTYPES`.
        spacing: distance of neighbouring slices along their normal [mm].
        pixel: pixel size [mm].
        tilt: gantry tilt [degrees]; a row's direction is (1, 0, 0), a column's (0, cos tilt, -sin tilt).
        origin_z: height of the centre of the lowest slice [mm].
        brain_area: largest number of brain pixels on a slice.
    """

    hu: NDArray[np.int16]
    masks: NDArray[np.uint8]
    spacing: float
    pixel: float
    tilt: float
    origin_z: float
    brain_area: int

    @property
    def subtype_labels(self) -> NDArray[np.int64]:
        """(n, 5) labels in the order of `SUBTYPES`."""
        kinds = range(1, len(SUBTYPES) + 1)
        return np.stack([(self.masks == kind).any(axis=(1, 2)) for kind in kinds], axis=1).astype(np.int64)

    @property
    def slice_labels(self) -> NDArray[np.int64]:
        """(n,) labels in {0, 1}."""
        return self.subtype_labels.max(axis=1)

    @property
    def label(self) -> int:
        """1 if any slice shows blood."""
        return int(self.slice_labels.max())


def _surface_point(rng: np.random.Generator, head: Head, heights: tuple[float, float]) -> NDArray[np.float64]:
    """A point on the inner table of the vault, its height [mm] drawn from `heights`."""
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


def _draw_bleed(rng: np.random.Generator, head: Head, name: str, grow: float) -> Bleed:
    shape = _DRAW[name](rng, head, grow)
    return Bleed(SUBTYPES.index(name), shape, float(rng.uniform(*BLOOD_HU)), draw_waves(rng, 4, (10, 40)))


def _weights(bleed: Bleed, f: Fields, offset: float) -> tuple[Image, Image]:
    """Share of blood in each pixel, 0 where it must not be, and the HU of this blood."""
    weight = np.clip(0.5 - bleed.shape(f) / (2 * EDGE_MM), 0, 1).astype(np.float32)
    weight[(weight < MIN_WEIGHT) | (f.depth <= 0)] = 0
    blood = np.zeros_like(weight)
    if weight.any():
        blood = np.float32(bleed.hu + offset) + wave_sum(bleed.texture, f.x, f.y, f.z)
        weight[weight * (blood - f.hu) < MIN_RISE] = 0
    return weight, blood


def _lay(
    bleeds: Sequence[Bleed], cut: Sequence[Fields], offset: float
) -> tuple[Image, NDArray[np.uint8], int]:
    """Blood of all bleeds: what it adds (n, H, W) [HU], the masks, and the largest brain area in pixels."""
    brain = max(max(int((f.depth > 0).sum()) for f in cut), 1)
    added = np.zeros((len(cut), *cut[0].hu.shape), np.float32)
    masks = np.zeros(added.shape, np.uint8)
    for n, f in enumerate(cut):
        best = np.zeros_like(f.hu)
        for bleed in bleeds:
            weight, blood = _weights(bleed, f, offset)
            more = weight > best
            best[more] = weight[more]
            added[n][more] = (weight * (blood - f.hu))[more]
            masks[n][more] = bleed.kind + 1
        for kind in np.unique(masks[n][masks[n] > 0]):
            here = masks[n] == kind
            if here.sum() < MIN_FRACTION * brain:
                masks[n][here] = 0
                added[n][here] = 0
    return added, masks, brain


def _place(rng: np.random.Generator, head: Head, name: str, cut: Sequence[Fields], offset: float) -> Bleed:
    """Draw a bleed until it shows on enough slices and is large enough on one; each try is larger."""
    for attempt in range(TRIES):
        bleed = _draw_bleed(rng, head, name, 1 + 0.02 * attempt)
        _, masks, brain = _lay([bleed], cut, offset)
        areas = (masks > 0).sum(axis=(1, 2))
        if (areas > 0).sum() >= MIN_POSITIVE_SLICES and areas.max() >= PEAK_FRACTION * brain:
            return bleed
    raise RuntimeError(f"no {name} bleed found in {TRIES} tries")  # our own invariant; a test draws hundreds


def _cut(head: Head, look: Look, plan: SeriesPlan, size: int) -> tuple[list[Fields], float]:
    """Slices of a head as planned and their distance along the normal [mm]."""
    lean = np.cos(np.deg2rad(look.tilt))
    cover = head.top - head.bottom
    count = plan.n_slices or max(round(cover * lean / (plan.spacing or 5.0)), SLICES[0])
    step = plan.spacing / lean if plan.spacing else cover / count
    heights = head.bottom + step * (np.arange(count) + 0.5)
    fields = [slice_fields(head, look, float(z), size, contrast=plan.contrast) for z in heights]
    return fields, float(step * lean)


def make_series(
    rng: np.random.Generator,
    plans: Sequence[SeriesPlan],
    *,
    bleeds: Sequence[str],
    site: Site,
    size: int = 256,
) -> list[Phantom]:
    """Make one head with its bleeds and cut it into several series, by each of `plans`.

    The bleeds are placed on the first plan's slices. The three streams drawn from `rng` (head, noise,
    bleeds) are independent of each other: the same `rng` state gives the same head and noise whatever
    `bleeds` are.

    Raises:
        ValueError: a bleed is not one of `SUBTYPES`, or fewer than `MIN_SIZE` pixels.
    """
    unknown = sorted(set(bleeds) - set(SUBTYPES))
    if unknown:
        raise ValueError(f"bleeds must be among {', '.join(SUBTYPES)}; got {unknown[0]!r}")
    if size < MIN_SIZE:
        raise ValueError(f"size must be at least {MIN_SIZE} pixels, got {size}")
    head_seed, noise_seed, bleed_seed = rng.integers(0, 2**62, 3).tolist()
    head_rng, bleed_rng = np.random.default_rng(head_seed), np.random.default_rng(bleed_seed)
    head, look = draw_head(head_rng), draw_look(head_rng, site)
    placed: list[Bleed] | None = None
    made = []
    for number, plan in enumerate(plans):
        seen = replace(look, noise=3.5 * look.noise, blur=0.2) if plan.bone else look
        cut, spacing = _cut(head, seen, plan, size)
        if placed is None:
            placed = [_place(bleed_rng, head, name, cut, look.offset) for name in bleeds]
        added, masks, brain = _lay(placed, cut, look.offset)
        noise_rng = np.random.default_rng([noise_seed, number])
        hu = np.empty(added.shape, np.int16)
        for n, f in enumerate(cut):
            plain = f.hu + draw_noise(noise_rng, seen, size)
            hu[n] = np.clip(np.rint(plain) + np.rint(added[n]), HU_AIR, HU_MAX)
        first = head.bottom + 0.5 * spacing / float(np.cos(np.deg2rad(look.tilt)))
        made.append(Phantom(hu, masks, spacing, look.fov / size, look.tilt, first, brain))
    return made


def draw_slice_count(rng: np.random.Generator) -> int:
    """Number of slices of a study, within `SLICES` and most often near 31."""
    return round(rng.triangular(SLICES[0] - 0.49, 31, SLICES[1] + 0.49))


def make_phantom(
    rng: np.random.Generator,
    *,
    bleeds: Sequence[str],
    site: Site,
    size: int = 256,
    n_slices: int | None = None,
) -> Phantom:
    """Make one synthetic head CT.

    Args:
        rng: source of all randomness; advanced by four draws.
        bleeds: names out of `SUBTYPES`, none for a negative scan; one may come twice.
        site: the scanner's look.
        size: rows and columns.
        n_slices: number of slices; drawn by `draw_slice_count` if not given.
    """
    drawn = draw_slice_count(rng)
    return make_series(rng, [SeriesPlan(n_slices or drawn)], bleeds=bleeds, site=site, size=size)[0]
