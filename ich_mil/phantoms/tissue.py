"""Slices of a synthetic head without bleeds: skull, scalp, brain, CSF and scanner effects.

In: a `Head`, a `Scanner` and the height of a slice. Out: `Fields`: HU without noise, and the distance fields
from which bleeds are made. All quantities are functions of the point in the head frame, so the same head can
be cut into slices of any spacing and tilt.

HU: air -1000, fat -100 to -50, CSF 0-15, white matter 20-30, grey matter 35-45, muscle 40-60, venous blood
50-60, bone above 300: the textbook ranges (Bushberg et al., The Essential Physics of Medical Imaging, 3rd
ed., ch. 10).

Shapes: H, W pixels of one slice.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

from ich_mil.phantoms.head import Head, Image, Scanner, coordinates, head_box, vault_depth, wave_sum

HU_AIR = -1000.0
HU_CSF = 8.0
HU_FAT = -80.0
HU_MUSCLE = 42.0
HU_SINUS = 50.0
"""Venous sinus: flowing blood at a haematocrit of 45 % [HU]."""
HU_FALX = 42.0
HU_CONTRAST = 170.0
"""Vessels and sinuses after contrast agent [HU]."""
HU_MAX = 3000.0

SULCUS_SLOPE = 0.2
"""Mean slope of the gyral waves [1/mm]; converts their value to a distance."""
SULCUS_DEPTH = 17.0
"""Depth of sulci below the inner table [mm]."""


class Fields(NamedTuple):
    """One slice of a head; every field is (H, W). x, y and z are coordinates in the head frame."""

    hu: Image  # HU with kernel, offset and streaks, without noise
    depth: Image  # distance to the nearest bone [mm], negative outside the brain
    vault: Image  # distance to the vault alone, without the skull base [mm], negative outside
    ventricle: Image  # signed distance to the ventricles [mm], negative inside
    cistern: Image  # signed distance to sulci, fissures and cisterns [mm], negative inside
    x: Image  # to the left [mm]
    y: Image  # to the back [mm]
    z: Image  # upwards [mm]


def _step(value: Image, width: float) -> Image:
    """Linear step from 0 (value below -width) to 1 (above width)."""
    return np.clip(0.5 + value / (2 * width), 0, 1)


def _ball(
    x: Image, y: Image, z: Image, centre: tuple[float, float, float], radii: tuple[float, ...]
) -> Image:
    """Signed distance to an ellipsoid [mm], approximate away from its surface, negative inside."""
    u, v, w = ((p - q) / r for p, q, r in zip((x, y, z), centre, radii, strict=True))
    return (np.sqrt(u * u + v * v + w * w) - 1) * min(radii)


_HORNS = (
    ((7.0, -38.0, 9.0), (6.0, -18.0, 20.0), 5.2),
    ((6.0, -18.0, 20.0), (12.0, 15.0, 22.0), 6.0),
    ((12.0, 15.0, 22.0), (20.0, 30.0, 10.0), 7.2),
    ((20.0, 30.0, 10.0), (17.0, 52.0, 7.0), 5.0),
    ((20.0, 30.0, 10.0), (29.0, 8.0, -12.0), 3.2),
)
"""Capsules of the lateral ventricle: two ends (|x|, y, z) and a radius [mm].

Frontal horn, body, atrium, occipital horn, temporal horn.
"""


def _ventricle_distance(head: Head, x: Image, y: Image, z: Image) -> Image:
    """Signed distance to the ventricles [mm], negative inside."""
    side = np.where(x > 0, np.float32(head.sides[0]), np.float32(head.sides[1])) * np.float32(head.ventricle)
    ax = np.abs(x)
    best = np.full(x.shape, 99, np.float32)
    low, high = float(z.min()), float(z.max())
    for p, q, radius in _HORNS:
        if low > max(p[2], q[2]) + 25 or high < min(p[2], q[2]) - 25:
            continue
        direction = tuple(end - start for start, end in zip(p, q, strict=True))
        length = sum(part * part for part in direction)
        dx, dy, dz = ax - np.float32(p[0]), y - np.float32(p[1]), z - np.float32(p[2])
        t = np.clip((dx * direction[0] + dy * direction[1] + dz * direction[2]) / length, 0, 1)
        away = np.sqrt(
            (dx - t * direction[0]) ** 2 + (dy - t * direction[1]) ** 2 + 0.6 * (dz - t * direction[2]) ** 2
        )
        best = np.minimum(best, away - radius * side)
    best = np.where(ax < 1.2, np.maximum(best, 0.8), best)
    third = _ball(x, y, z, (0, 2, 2), (2.2 * head.ventricle, 13, 9))
    fourth = _ball(x, y, z, (0, 36, -34), (8 * head.ventricle, 5, 9))
    return np.asarray(np.minimum(best, np.minimum(third, fourth)), np.float32)


def _cisterns(head: Head, depth: Image, x: Image, y: Image, z: Image) -> Image:
    """Signed distance to sulci, fissures and cisterns [mm], negative inside."""
    sway = 5 * np.sin(wave_sum(head.warp, x, y, z))
    folds = np.abs(wave_sum(head.gyri, x + sway, y - sway, z + sway)) / np.float32(SULCUS_SLOPE)
    sulci = folds - head.sulcus * (1.3 - depth / SULCUS_DEPTH) + np.maximum(depth - SULCUS_DEPTH, 0)
    sulci = np.where(z < -15 - 0.15 * y, 9, sulci)
    ax = np.abs(x)
    suprasellar = _ball(x, y, z, (0, -6, -20), (13, 10, 7))
    ring = np.sqrt(x * x + (y - 10) ** 2)
    ambient = np.maximum(np.maximum(np.abs(ring - 18) - 1.3, 6 - y), np.abs(z + 15) - 7)
    fissure_y = -4 - 0.3 * (ax - 32) + 0.8 * z
    sylvian = np.maximum(np.abs(y - fissure_y) - 1.6, np.maximum(32 - ax, np.abs(z) - 20))
    insula = np.maximum(np.abs(ax - 35) - 1.4, np.maximum(np.abs(y) - 15, np.abs(z - 2) - 13))
    between = np.maximum(ax - 1.1 * head.sulcus, np.where(z > 28, -9, 26 - np.abs(y + 4)))
    between = np.where(z < -8, 9, between)
    rim = depth - 0.9 * head.sulcus
    basal = np.minimum(np.minimum(suprasellar, ambient), np.minimum(sylvian, insula))
    return np.asarray(np.minimum(np.minimum(basal, between), np.minimum(sulci, rim)), np.float32)


def _floor_height(x: Image, y: Image) -> tuple[Image, Image]:
    """Height of the skull base [mm] and distance behind the petrous ridge [mm]."""
    ridge = y + 6 - 0.55 * np.abs(x)
    ax = np.abs(x)
    front = -19 + 4 * np.exp(-(((ax - 30) / 13) ** 2)) - 0.2 * (y + 24)
    middle = np.where(ax < 14, np.float32(-28), np.float32(-40))
    wing = _step(y + 14 + 0.35 * ax, 4)
    height = front + (middle - front) * wing + (-66 - middle) * _step(ridge - 4, 5)
    return np.asarray(height, np.float32), ridge


def _brain_hu(head: Head, contrast: bool, f: Fields) -> Image:
    x, y, z, depth, vault = f.x, f.y, f.z, f.depth, f.vault
    texture = wave_sum(head.texture, x, y, z)
    cortex = (f.cistern < 3.2) & (depth < SULCUS_DEPTH + 4) | (depth < 4)
    brain = np.where(cortex, head.grey, head.white) + 0.7 * texture
    ax = np.abs(x)
    for centre, radii in (((11, 6, 7), (8, 13, 9)), ((24, -8, 4), (6, 14, 9)), ((14, -26, 14), (4, 9, 7))):
        brain = np.where(_ball(ax, y, z, centre, radii) < 0, head.grey + 0.5 * texture, brain)
    cerebellum = (z < -12 - 0.15 * (y - 20)) & (y > 18)
    folia = np.sin((y + 0.6 * z + 2 * texture) * 1.1)
    brain = np.where(cerebellum, (head.grey + head.white) / 2 + 2 + 2 * folia + 0.6 * texture, brain)
    brain = np.where((f.ventricle < 0) | (f.cistern < 0), HU_CSF + texture, brain)
    vessel = HU_CONTRAST if contrast else HU_SINUS
    falx = (ax < 0.8) & (z > 0) & ((np.abs(y + 4) > 34) | (z > 36))
    tent = (np.abs(z + 12 + 0.15 * (y - 20) - 0.3 * (30 - ax)) < 1.0) & (y > 30)
    brain = np.where(falx | tent, HU_FALX + (70 if contrast else 0), brain)
    sagittal = (ax < 4 - 0.4 * vault) & (vault < 8) & ((y > 20) | (z > 35)) & (z > -22)
    transverse = (np.abs(z + 28) < 4.5) & (vault < 6) & (y > 25)
    brain = np.where(sagittal | transverse, vessel, brain)
    circle = (_ball(ax, y, z, (10, -9, -19), (2.2, 2.2, 8)) < 0) | (
        (np.abs(y + 9 - 0.2 * ax) < 1.4) & (np.abs(z + 15) < 2.5) & (ax < 38)
    )
    brain = np.where(circle, vessel - (0 if contrast else 10), brain)
    low, high = float(z.min()), float(z.max())
    for sx, sy, sz, radius, hu in head.stones.tolist():
        if low < sz + radius and high > sz - radius:
            brain = np.where(_ball(x, y, z, (sx, sy, sz), (radius, radius, radius)) < 0, hu, brain)
    return np.asarray(brain, np.float32)


def _below_floor(head: Head, x: Image, y: Image, z: Image, bone: float) -> Image:
    """HU of face and neck below the skull base, for compact bone of `bone` HU."""
    cells = wave_sum(head.cells, x, y, z)
    ax = np.abs(x)
    hu = np.where(wave_sum(head.texture, x, y, z) > 0.9, HU_FAT + 10, HU_MUSCLE + cells)
    orbit = _ball(ax, y, z, (32, -58, -38), (19, 25, 17))
    hu = np.where(orbit < 3, 0.7 * bone, hu)
    hu = np.where(orbit < 0, HU_FAT, hu)
    hu = np.where((orbit < 0) & (np.abs(ax - 30 - 0.15 * (y + 58)) < 2), HU_MUSCLE, hu)
    hu = np.where(_ball(ax, y, z, (33, -68, -38), (12, 12, 12)) < 0, 14, hu)
    nose = (ax < 15) & (y < -28) & (z < -20)
    hu = np.where(nose, np.where(np.abs(cells) < 0.45, 0.4 * bone, HU_AIR + 30), hu)
    mastoid = _ball(ax, y, z, (56, 24, -50), (15, 16, 16))
    hu = np.where(mastoid < 0, np.where(cells > 0.2, HU_AIR + 100, 0.6 * bone), hu)
    clivus = (ax < 13) & (np.abs(y + 4) < 9)
    return np.where(clivus, 0.55 * bone + 60 * cells, hu)


def slice_fields(head: Head, scanner: Scanner, z: float, size: int, *, contrast: bool = False) -> Fields:
    """Compute one slice of a head without noise, `size` x `size` pixels at height `z` [mm] of the scanner."""
    x, y, zz = coordinates(head, scanner, z, size)
    air = np.full((size, size), HU_AIR, np.float32)
    row = np.hypot(x, y + 40) - np.float32(scanner.table + 42)
    air[(np.abs(row) < 1.6) & (y > 20)] = 60
    far = np.full((size, size), 90, np.float32)
    whole = Fields(air, -far, -far, far, far.copy(), x, y, zz)
    box = head_box(head, scanner, z, size)
    if air[box].size:
        part = _head_fields(head, scanner, x[box], y[box], zz[box], contrast)
        whole.hu[box] = np.where(part.hu > HU_AIR - 1, part.hu, whole.hu[box])
        for target, source in zip(whole[1:5], part[1:5], strict=True):
            target[box] = source
    hu = gaussian_filter(whole.hu, max(scanner.blur * size / scanner.fov, 0.4), truncate=3.0)
    if air[box].size:
        hu[box] += np.where(
            whole.depth[box] > -2, scanner.cupping * np.exp(-np.maximum(whole.depth[box], 0) / 9), 0
        )
        hu[box] += _streaks(head, scanner, x[box], y[box], zz[box]) * (whole.hu[box] > HU_AIR + 100)
    return whole._replace(hu=hu)


def _head_fields(head: Head, scanner: Scanner, x: Image, y: Image, zz: Image, contrast: bool) -> Fields:
    """Tissue at the points (x, y, zz) before the kernel; HU_AIR - 2 marks the air around the head."""
    vault = vault_depth(head, x, y, zz)
    height, ridge = _floor_height(x, y)
    depth = np.minimum(vault, zz - height)
    petrous = (np.abs(ridge) < 7 - 0.25 * (zz + 45)) & (np.abs(x) > 12) & (zz < -27)
    depth = np.where(petrous, np.minimum(depth, -1), depth).astype(np.float32)
    fields = Fields(
        depth, depth, vault, _ventricle_distance(head, x, y, zz), _cisterns(head, depth, x, y, zz), x, y, zz
    )
    hu = np.where(depth > 0, _brain_hu(head, contrast, fields), HU_MUSCLE).astype(np.float32)
    below = (depth <= 0) & (vault > 0)
    base = below & ((zz > height - 3) | petrous)
    cells = wave_sum(head.cells, x, y, zz)
    if below.any():
        hu = np.where(below & ~base, _below_floor(head, x, y, zz, scanner.bone), hu)
    hu = np.where(base, 0.85 * scanner.bone + 40 * cells, hu)
    hu = np.where(base & petrous & (cells > 2.0), HU_AIR + 300, hu)
    wobble = 1 + 0.08 * wave_sum(head.warp, x, y, zz) + 0.25 * (y > 0.8 * head.axes[1])
    thick = head.skull * wobble
    layer = -vault / thick
    diploe = (layer > 0.33) & (layer < 0.7)
    skull = np.where(diploe, 0.5 * scanner.bone + 70 * cells, scanner.bone)
    face = (zz < -20) & (y < -20)
    skull = np.where(face & (cells > -0.5), HU_MUSCLE + cells, skull)
    frontal = _ball(np.abs(x), y, zz, (10, -head.axes[1] - 0.5 * head.skull, -5), (9, 3.0, 11)) < 0
    skull = np.where(frontal, HU_AIR, skull)
    hu = np.where((vault <= 0) & (layer < 1), skull, hu)
    skin = head.scalp * (1 + 0.1 * wave_sum(head.warp, y, x, zz))
    outer = -vault - thick
    hu = np.where(outer > 0, np.where((outer < 0.25 * skin) | (outer > 0.7 * skin), 35, HU_FAT), hu)
    hu += np.where(hu > HU_AIR + 200, np.float32(scanner.offset), np.float32(0))
    hu = np.where(outer > skin, HU_AIR - 2, hu)
    return fields._replace(hu=np.asarray(hu, np.float32))


def _streaks(head: Head, scanner: Scanner, x: Image, y: Image, z: Image) -> Image:
    """Beam hardening [HU]: streaks from the skull base and a dark bar between the petrous bones."""
    near = np.exp(-(((z + 42) / 14) ** 2))
    if float(near.max()) < 0.02:
        return np.zeros_like(x)
    angle = np.arctan2(y - 5, x)
    rays = sum(np.sin(count * angle + phase) for count, phase in head.rays.tolist())
    bar = np.exp(-(((y - 6) / 7) ** 2)) * (np.abs(x) < 45)
    return np.asarray(scanner.streak * near * (0.4 * rays - 0.9 * bar), np.float32)


def draw_noise(rng: np.random.Generator, scanner: Scanner, size: int) -> Image:
    """Noise of one slice [HU]: white noise filtered with the kernel and rescaled to `scanner.noise`."""
    noise = gaussian_filter(
        rng.standard_normal((size, size), np.float32), max(scanner.blur * size / scanner.fov, 0.4)
    )
    return np.asarray(noise * np.float32(scanner.noise / max(float(noise.std()), 1e-6)), np.float32)
