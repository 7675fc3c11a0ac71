"""Small simulated bags of two modalities for the tests."""

import numpy as np
import torch

from ich_mil.multimodal.inference.likelihood import Likelihood
from ich_mil.multimodal.layout import Columns, Rows


def simulated(
    n: int, rng: np.random.Generator, *, most: int = 4, scale: float = 1.5, widths: tuple[int, int] = (2, 1)
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Features, bags, labels and δ: up to `most` instances of each modality a bag, some bags lack one."""
    X, bags, primary, eta = [], [], [], np.zeros(n)
    for m, width in enumerate(widths):
        sizes = rng.integers(0 if m else 1, most + 1, n)
        owner = np.repeat(np.arange(n), sizes)
        x = rng.standard_normal((len(owner), width))
        delta = (scale * x.sum(1) - 0.3 + rng.standard_normal(len(owner)) > 0).astype(float)
        eta += np.bincount(owner, delta * scale * x[:, 0] * (1 if m == 0 else -1), minlength=n)
        X.append(x)
        bags.append(owner)
        primary.append(delta)
    y = (eta + rng.standard_normal(n) > 0).astype(int)
    return X, bags, y, primary


def likelihood_of(
    X: list[np.ndarray], bags: list[np.ndarray], y: np.ndarray, *, device: torch.device | str = "cpu"
) -> Likelihood:
    """The likelihood of these bags as they are."""
    rows = [
        Rows(torch.as_tensor(x).to(device), torch.as_tensor(b).to(device))
        for x, b in zip(X, bags, strict=True)
    ]
    columns = Columns.of([x.shape[1] for x in X])
    return Likelihood(rows, torch.as_tensor(2.0 * y - 1).to(device), columns)
