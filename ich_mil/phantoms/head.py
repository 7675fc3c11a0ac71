"""Random parameters of a synthetic head CT: anatomy, pose and scanner characteristics.

In: a numpy Generator. Out: a `Head` (anatomy and pose) and a `Scanner` (scanner characteristics), from which
`tissue` computes slices. Points are (x, y, z) in the frame of the head [mm]: x to the left, y to the back,
z up, as in DICOM. The origin lies between the thalami.

Shapes: K waves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[Any]
"""Array (H, W), float32 or bool."""

SKULL_POWER = 2.3
"""Exponent of the superellipsoid of the inner table; 2 is an ellipsoid."""


@dataclass(frozen=True)
class Site:
    """Scanner characteristics of one hospital. Each pair is the range of a uniform distribution."""

    name: str  # part of the random seeds
    noise: tuple[float, float]  # standard deviation of the noise after the kernel [HU]
    blur: tuple[float, float]  # sigma of the reconstruction kernel [mm]
    offset: tuple[float, float]  # calibration error, added to everything except air [HU]
    tilt: tuple[float, float]  # gantry tilt [degrees]; one third of the scans have no tilt
    streak: tuple[float, float]  # amplitude of beam hardening at the skull base [HU]
    cupping: tuple[float, float]  # brightening below the inner table [HU]
    bone: tuple[float, float]  # HU of compact bone
    fov: tuple[float, float]  # field of view [mm]


SITE_A = Site("a", (2.5, 5.0), (0.45, 0.8), (-3, 3), (5, 24), (2, 8), (2, 7), (1150, 1500), (225, 250))
SITE_B = Site("b", (4.0, 7.0), (0.30, 0.55), (-2, 6), (-8, 12), (5, 13), (0, 5), (1000, 1350), (230, 260))


@dataclass(frozen=True)
class Scanner:
    """Scanner characteristics of one scan: a draw from a `Site`, in the same units.

    `table` is the distance from the middle of the head back to the patient table [mm].
    """

    noise: float
    blur: float
    offset: float
    tilt: float
    streak: float
    cupping: float
    bone: float
    fov: float
    table: float


def draw_scanner(rng: np.random.Generator, site: Site) -> Scanner:
    """Draw the scanner characteristics of one scan."""
    tilt = float(rng.uniform(*site.tilt))
    tilt = 0.0 if rng.random() < 1 / 3 else tilt
    names = ("noise", "blur", "offset", "streak", "cupping", "bone", "fov")
    drawn = {name: float(rng.uniform(*getattr(site, name))) for name in names}
    return Scanner(tilt=tilt, table=float(rng.uniform(112, 122)), **drawn)


@dataclass(frozen=True)
class Head:
    """Anatomy and pose of one head. Waves are (K, 4): three wave numbers [1/mm] and a phase per row."""

    axes: tuple[float, float, float]  # half axes of the inner table along x, y and z [mm]
    egg: float  # widening at the back and narrowing at the front, as a fraction of the width
    skull: float  # thickness of the vault [mm]
    scalp: float  # thickness of the scalp [mm]
    bottom: float  # lower end of the scan, as height on the scanner axis [mm]
    top: float  # upper end of the scan, as height on the scanner axis [mm]
    rotation: NDArray[np.float64]  # (3, 3) rotation from the scanner frame to the head frame
    shift: NDArray[np.float64]  # (3,) offset of the head from the scanner axis [mm]
    grey: float  # HU of grey matter
    white: float  # HU of white matter
    ventricle: float  # relative size of the ventricles; 1 is typical
    sulcus: float  # half width of sulci [mm]
    sides: tuple[float, float]  # sizes of the left and right lateral ventricle relative to `ventricle`
    gyri: NDArray[np.float64]  # waves with sulci at their zeros
    warp: NDArray[np.float64]  # waves that bend the gyri and vary the skull thickness
    texture: NDArray[np.float64]  # waves of the brain HU
    cells: NDArray[np.float64]  # waves of spongy bone and air cells
    rays: NDArray[np.float64]  # (5, 2) angular frequency and phase of the streaks at the skull base
    stones: NDArray[np.float64]  # (n, 5) calcifications: x, y, z, radius [mm] and HU


def draw_waves(rng: np.random.Generator, count: int, length: tuple[float, float]) -> NDArray[np.float64]:
    """Draw K plane waves with wavelengths in `length` [mm]."""
    direction = rng.normal(size=(count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    number = 2 * np.pi / rng.uniform(*length, size=(count, 1))
    return np.hstack([direction * number, rng.uniform(0, 2 * np.pi, (count, 1))])


def _draw_stones(rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw calcifications (n, 5) of pineal gland, choroid plexus, carotids, basal ganglia and falx."""
    stones: list[tuple[float, float, float, float, float]] = []

    def add(chance: float, x: float, y: float, z: float, radius: tuple[float, float]) -> None:
        centre = rng.normal((x, y, z), 1.5)
        size, hu, kept = rng.uniform(*radius), rng.uniform(90, 380), rng.random() < chance
        if kept:
            stones.append((float(centre[0]), float(centre[1]), float(centre[2]), float(size), float(hu)))

    add(0.65, 0, 19, 5, (1.8, 4.0))
    for side in (-1, 1):
        add(0.6, side * 17, 27, 10, (2.0, 5.0))
        add(0.3, side * 10, -10, -22, (1.5, 3.0))
        add(0.2, side * 22, -5, 4, (2.0, 5.5))
    add(0.35, 0, float(rng.uniform(-60, -30)), float(rng.uniform(25, 50)), (2.0, 5.0))
    return np.array(stones).reshape(-1, 5)


def draw_head(rng: np.random.Generator) -> Head:
    """Draw the anatomy and the pose of one head."""
    scale = rng.uniform(0.92, 1.06)
    axes = (rng.uniform(64, 71) * scale, rng.uniform(78, 88) * scale, rng.uniform(70, 79) * scale)
    roll, pitch, yaw = np.deg2rad(rng.normal(0, (3.0, 4.0, 4.0)))
    turn_y = np.array([[np.cos(roll), 0, np.sin(roll)], [0, 1, 0], [-np.sin(roll), 0, np.cos(roll)]])
    turn_x = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    turn_z = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    skull, scalp = rng.uniform(5.0, 8.5), rng.uniform(3.5, 7.0)
    white = rng.uniform(24, 31)
    return Head(
        axes=axes,
        egg=rng.uniform(0.06, 0.16),
        skull=skull,
        scalp=scalp,
        bottom=rng.uniform(-76, -50),
        top=axes[2] + skull + rng.uniform(-16, 14),
        rotation=turn_x @ turn_y @ turn_z,
        shift=rng.normal(0, (3.0, 5.0, 0.0)),
        grey=white + rng.uniform(7, 11),
        white=white,
        ventricle=rng.uniform(0.85, 1.45),
        sulcus=rng.uniform(0.6, 1.6),
        sides=(rng.uniform(0.88, 1.12), rng.uniform(0.88, 1.12)),
        gyri=draw_waves(rng, 3, (30, 42)),
        warp=draw_waves(rng, 3, (35, 60)),
        texture=draw_waves(rng, 4, (18, 70)),
        cells=draw_waves(rng, 4, (5, 9)),
        rays=np.column_stack([rng.integers(3, 15, 5), rng.uniform(0, 2 * np.pi, 5)]),
        stones=_draw_stones(rng),
    )


def wave_sum(waves: NDArray[np.float64], x: Image, y: Image, z: Image) -> Image:
    """Sum of the sines of K plane waves `waves` (K, 4), in -K..K."""
    total = np.zeros(x.shape, np.float32)
    for kx, ky, kz, phase in waves.astype(np.float32):
        total += np.sin(kx * x + ky * y + kz * z + phase)
    return total


def coordinates(head: Head, scanner: Scanner, z: float, size: int) -> tuple[Image, Image, Image]:
    """Pixel coordinates x, y, z in the head frame [mm] for a slice at `z` on the scanner axis [mm]."""
    step = scanner.fov / size
    line = ((np.arange(size) - (size - 1) / 2) * step).astype(np.float32)
    tilt = np.deg2rad(scanner.tilt)
    column, row = np.meshgrid(line, line)
    points = (column - head.shift[0], row * np.cos(tilt) - head.shift[1], z - row * np.sin(tilt))
    turn = head.rotation
    arrays = [np.asarray(values, np.float32) for values in points]
    x, y, zz = (sum(np.float32(turn[i, j]) * arrays[j] for j in range(3)) for i in range(3))
    return np.asarray(x), np.asarray(y), np.asarray(zz)


def vault_depth(head: Head, x: Image, y: Image, z: Image) -> Image:
    """Depth below the inner table [mm], negative outside: (1 - ρ) / |∇ρ| of a superellipsoid."""
    a, b, c = (np.float32(axis) for axis in head.axes)
    width = a * (1 + np.float32(head.egg) * np.clip(y / b, -1, 1))
    height = np.where(z > 0, c, np.float32(2.2) * c)
    u, v, w = np.abs(x) / width, np.abs(y) / b, np.abs(z) / height
    power = np.float32(SKULL_POWER)
    up, vp, wp = u**power, v**power, w**power
    total = up + vp + wp + np.float32(1e-6)
    tiny = np.float32(1e-3)
    slope = np.sqrt(
        (up / (u + tiny) / width) ** 2 + (vp / (v + tiny) / b) ** 2 + (wp / (w + tiny) / height) ** 2
    )
    rho = total ** (1 / power)
    return np.asarray(np.clip((1 - rho) * total / (rho * slope + np.float32(1e-6)), -90, 60), np.float32)


def head_box(head: Head, scanner: Scanner, z: float, size: int) -> tuple[slice, slice]:
    """Rows and columns that contain the head, from a coarse grid; empty without a head."""
    coarse = 48
    depth = vault_depth(head, *coordinates(head, scanner, z, coarse))
    near = depth > -1.5 * head.skull - 1.5 * head.scalp - 8
    if not near.any():
        return slice(0, 0), slice(0, 0)
    box = []
    for axis in (1, 0):
        pixels = np.flatnonzero(near.any(axis=axis)) / coarse * size
        margin = 2 * size / coarse
        box.append(slice(max(int(pixels[0] - margin), 0), min(int(pixels[-1] + margin) + 1, size)))
    return box[0], box[1]
