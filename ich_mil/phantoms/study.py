"""Synthetic head CT series with bleeds.

In: a numpy Generator, the names of the bleeds, and a `Site`. Out: a `Phantom`: int16 HU, lowest slice first,
and a bleed label per pixel. Blood is added to the finished head. Pixels outside the masks are therefore the
same with and without bleeds, and the noise inside the masks does not change.

Shapes: n slices, H = W = size pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ich_mil.phantoms.bleed_shapes import SUBTYPES, Bleed, draw_bleed
from ich_mil.phantoms.head import Head, Image, Scanner, Site, draw_head, draw_scanner, wave_sum
from ich_mil.phantoms.tissue import HU_AIR, HU_MAX, Fields, draw_noise, slice_fields

SLICES = (24, 57)
"""Minimum and maximum number of slices of a study: the range of the RSNA subset in the literature."""
MIN_FRACTION = 0.006
"""Minimum blood area on a slice, as a fraction of the largest brain area; smaller areas are removed."""
PEAK_FRACTION = 0.04
"""Minimum area of a bleed on its largest slice, as a fraction of the largest brain area."""
MIN_POSITIVE_SLICES = 5
EDGE_MM = 1.0
"""Half width of the soft edge of a bleed [mm]."""
MIN_WEIGHT = 0.3
"""Minimum blood fraction of a pixel; pixels with less are not changed."""
MIN_RISE = 6.0
"""Minimum increase by blood [HU]; pixels with a smaller increase are not changed."""
TRIES = 80
MIN_SIZE = 16
"""Minimum number of rows and columns: smaller slices show no head."""


@dataclass(frozen=True)
class SeriesPlan:
    """Scanner plan of a series: number of slices or slice spacing [mm], bone kernel, contrast agent."""

    n_slices: int | None = None
    spacing: float | None = None
    bone: bool = False
    contrast: bool = False


@dataclass(frozen=True)
class Phantom:
    """One synthetic series. The row direction is (1, 0, 0), the column direction (0, cos tilt, -sin tilt)."""

    hu: NDArray[np.int16]  # (n, H, W) HU, lowest slice first
    masks: NDArray[np.uint8]  # (n, H, W) 0 without blood, else 1 + index in `SUBTYPES`
    spacing: float  # distance between neighbouring slices along their normal [mm]
    pixel: float  # pixel size [mm]
    tilt: float  # gantry tilt [degrees]
    origin_z: float  # height of the centre of the lowest slice [mm]
    brain_area: int  # maximum number of brain pixels on a slice

    @property
    def subtype_labels(self) -> NDArray[np.int64]:
        """Slice labels (n, 5) in {0, 1}, in the order of `SUBTYPES`."""
        kinds = range(1, len(SUBTYPES) + 1)
        return np.stack([(self.masks == kind).any(axis=(1, 2)) for kind in kinds], axis=1).astype(np.int64)

    @property
    def slice_labels(self) -> NDArray[np.int64]:
        """Slice labels (n,) in {0, 1} for any blood."""
        return self.subtype_labels.max(axis=1)

    @property
    def label(self) -> int:
        """Scan label: 1 if any slice shows blood, else 0."""
        return int(self.slice_labels.max())


def _weights(bleed: Bleed, f: Fields, offset: float) -> tuple[Image, Image]:
    """Blood fraction (H, W) of each pixel, 0 where no blood is allowed, and HU (H, W) of the blood."""
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
    """HU increase (n, H, W) by bleeds, masks (n, H, W), and the largest brain area of a slice [pixels]."""
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
            pixels = masks[n] == kind
            if pixels.sum() < MIN_FRACTION * brain:
                masks[n][pixels] = 0
                added[n][pixels] = 0
    return added, masks, brain


def _place(rng: np.random.Generator, head: Head, name: str, cut: Sequence[Fields], offset: float) -> Bleed:
    for attempt in range(TRIES):
        bleed = draw_bleed(rng, head, name, 1 + 0.02 * attempt)
        _, masks, brain = _lay([bleed], cut, offset)
        areas = (masks > 0).sum(axis=(1, 2))
        if (areas > 0).sum() >= MIN_POSITIVE_SLICES and areas.max() >= PEAK_FRACTION * brain:
            return bleed
    raise RuntimeError(f"no {name} bleed found in {TRIES} tries")  # internal invariant, tested on hundreds


def _cut(head: Head, scanner: Scanner, plan: SeriesPlan, size: int) -> tuple[list[Fields], float]:
    """Cut a head into slices by `plan`; returns the slices and their spacing along the normal [mm]."""
    lean = np.cos(np.deg2rad(scanner.tilt))
    cover = head.top - head.bottom
    count = plan.n_slices or max(round(cover * lean / (plan.spacing or 5.0)), SLICES[0])
    step = plan.spacing / lean if plan.spacing else cover / count
    heights = head.bottom + step * (np.arange(count) + 0.5)
    fields = [slice_fields(head, scanner, float(z), size, contrast=plan.contrast) for z in heights]
    return fields, float(step * lean)


def make_series(
    rng: np.random.Generator,
    plans: Sequence[SeriesPlan],
    *,
    bleeds: Sequence[str],
    site: Site,
    size: int = 256,
) -> list[Phantom]:
    """Make one head with bleeds and cut it into one series per plan.

    Bleeds (names in `SUBTYPES`) are placed on the slices of the first plan. Three independent streams are
    drawn from `rng` (head, noise, bleeds), so the same `rng` state gives the same head and noise for any
    `bleeds`.

    Raises:
        ValueError: a name in `bleeds` is not in `SUBTYPES`, or `size` is less than `MIN_SIZE`.
    """
    if unknown := sorted(set(bleeds) - set(SUBTYPES)):
        raise ValueError(f"bleeds must be among {', '.join(SUBTYPES)}; got {unknown[0]!r}")
    if size < MIN_SIZE:
        raise ValueError(f"size must be at least {MIN_SIZE} pixels, got {size}")
    head_seed, noise_seed, bleed_seed = rng.integers(0, 2**62, 3).tolist()
    head_rng, bleed_rng = np.random.default_rng(head_seed), np.random.default_rng(bleed_seed)
    head, scanner = draw_head(head_rng), draw_scanner(head_rng, site)
    placed: list[Bleed] | None = None
    made = []
    for number, plan in enumerate(plans):
        seen = replace(scanner, noise=3.5 * scanner.noise, blur=0.2) if plan.bone else scanner
        cut, spacing = _cut(head, seen, plan, size)
        if placed is None:
            placed = [_place(bleed_rng, head, name, cut, scanner.offset) for name in bleeds]
        added, masks, brain = _lay(placed, cut, scanner.offset)
        noise_rng = np.random.default_rng([noise_seed, number])
        hu = np.empty(added.shape, np.int16)
        for n, f in enumerate(cut):
            plain = f.hu + draw_noise(noise_rng, seen, size)
            hu[n] = np.clip(np.rint(plain) + np.rint(added[n]), HU_AIR, HU_MAX)
        first = head.bottom + 0.5 * spacing / float(np.cos(np.deg2rad(scanner.tilt)))
        made.append(Phantom(hu, masks, spacing, scanner.fov / size, scanner.tilt, first, brain))
    return made


def make_phantom(
    rng: np.random.Generator,
    *,
    bleeds: Sequence[str],
    site: Site,
    size: int = 256,
    n_slices: int | None = None,
) -> Phantom:
    """Make one series of a head, as `make_series`; `n_slices` is drawn within `SLICES` if None."""
    drawn = round(rng.triangular(SLICES[0] - 0.49, 31, SLICES[1] + 0.49))
    return make_series(rng, [SeriesPlan(n_slices or drawn)], bleeds=bleeds, site=site, size=size)[0]
