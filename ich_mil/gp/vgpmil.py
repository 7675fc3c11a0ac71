"""ψ-VGPMIL: the fit that turns slice features and scan labels into a Gaussian-process head.

In: packed (N, D) features, offsets and scan labels. Out: a `VGPMIL` model that holds q(w) = N(m, S), and a
report of the fit. Castro-Macías et al. 2024, Eq. 23-28 and Algorithm 1, with fixed kernel hyperparameters,
written for the whitened inducing values of `model.py`:

    S = (I + Φ Θ Φᵀ)⁻¹        m = S Φ (π - ½)
    Θ = diag θ(c)             c = √(μ² + σ²)
    π_n = sigmoid(μ_n + log H · (2T_b - 1) · Π_{j∈b, j≠n} (1 - π_j))

Shapes: B bags (scans), N instances (slices), D features, M inducing points.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ich_mil.errors import DataError
from ich_mil.gp.calibration import platt
from ich_mil.gp.densities import Density
from ich_mil.gp.inducing import choose_inducing
from ich_mil.gp.model import VGPMIL
from ich_mil.gp.rules import Rule, scan_logit
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.storage import load_head, save_head
from ich_mil.kernels.leave_one_out import gauss_seidel, jacobi, log_none_positive
from ich_mil.kernels.segments import bag_index

__all__ = ["VGPMIL", "Bags", "FitReport", "HeadSettings", "fit", "load_head", "save_head"]

Bags = tuple[Tensor, Tensor, Tensor]
"""Features (N, D), offsets (B + 1,), labels (B,) of a set of scans."""

RUNAWAY = 50.0
"""|μ| beyond which a fit has run away: sigmoid(f) is 1 to the last bit of float64 from f = 37 on."""

COLLAPSED = 1e-3
"""Largest |μ| below which a fit has shrunk to the prior mean and tells nothing apart."""


@dataclass(frozen=True)
class FitReport:
    """What happened in a fit, sweep by sweep (the first entry is sweep 1).

    Attributes:
        elbo: evidence bound; exact for the logistic density, up to a constant for others.
        max_abs_mean: largest |μ| of a training slice.
        validation_log_loss: calibrated log-loss of the validation scans; empty without any.
        best_sweep: the sweep whose state was returned; 0 = the prior.
        stopped: why it ended.
        message: the same in a sentence.
    """

    elbo: tuple[float, ...]
    max_abs_mean: tuple[float, ...]
    validation_log_loss: tuple[float, ...]
    best_sweep: int
    stopped: Literal["validation", "converged", "sweeps", "diverged"]
    message: str


class _Weights(NamedTuple):
    """q(w): m (M,), and C (M, M) with C Cᵀ = I + Φ Θ Φᵀ = S⁻¹."""

    mean: Tensor
    precision_root: Tensor


def update_weights(phi: Tensor, theta: Tensor, logits: Tensor) -> _Weights:
    """S⁻¹ = I + Φ Θ Φᵀ = C Cᵀ (Eq. 27) and m = S Φ (π - ½) (Eq. 26).

    Args:
        phi: (M, N).
        theta: (N,) θ(c).
        logits: (N,) of π.

    Returns:
        q(w).
    """
    A = (phi * theta) @ phi.mT  # (M, M)
    A.diagonal().add_(1.0)
    C = torch.linalg.cholesky_ex(A).L
    # π - ½ = ½ tanh(a/2) loses nothing near π = ½
    b = phi @ (torch.tanh(logits / 2) / 2)  # (M,)
    return _Weights(torch.cholesky_solve(b[:, None], C)[:, 0], C)


def moments(phi: Tensor, residual: Tensor, weights: _Weights) -> tuple[Tensor, Tensor]:
    """μ = Φᵀ m (N,) and σ² = diag(Φᵀ S Φ) + residual (N,)."""
    spread = torch.linalg.solve_triangular(weights.precision_root, phi, upper=False)  # C⁻¹ Φ (M, N)
    return phi.mT @ weights.mean, spread.square().sum(0) + residual


def evidence_bound(
    density: Density,
    weights: _Weights,
    c: Tensor,
    mu: Tensor,
    logits: Tensor,
    bags: Tensor,
    labels: Tensor,
    log_h: float,
) -> Tensor:
    """The evidence lower bound with Θ at its optimum for this q(w).

    Σ_n [log ψ(c_n) + (π_n - ½) μ_n + H(π_n)] + Σ_b [log H · E G_b - log(1 + H)] - KL(q(w) ‖ N(0, I)),
    where E G_b = T_b E max + (1 - T_b)(1 - E max) and E max = 1 - Π(1 - π).

    Args:
        density: ψ; the bound is exact for the logistic one and up to a constant for others.
        weights: q(w).
        c: (N,) √(μ² + σ²).
        mu: (N,).
        logits: (N,) of π.
        bags: (N,).
        labels: (B,) in {0, 1}.
        log_h: log H.

    Returns:
        A number.
    """
    pi, log_pi, log_not = torch.sigmoid(logits), logsigmoid(logits), logsigmoid(-logits)
    entropy = -(pi * log_pi + torch.sigmoid(-logits) * log_not)  # (N,)
    slices = density.log_psi(c) + torch.tanh(logits / 2) / 2 * mu + entropy
    none = log_none_positive(log_not, bags, len(labels)).exp()  # (B,)
    agree = torch.where(labels == 1, 1 - none, none)  # E G_b
    scans = log_h * agree - softplus(torch.tensor(log_h, dtype=c.dtype))
    m, C = weights
    root = torch.linalg.solve_triangular(C, torch.eye(len(m)).to(C), upper=False)  # S = rootᵀ root
    kl = 0.5 * (root.square().sum() + m.square().sum() - len(m)) + C.diagonal().log().sum()
    return slices.sum() + scans.sum() - kl


def scan_logits(mu: Tensor, variance: Tensor, offsets: Tensor, rule: Rule) -> Tensor:
    """Scan logits (B,) without sampling: the rule over μ / √(1 + π σ²/8), MacKay's E sigmoid(f)."""
    f = mu / torch.sqrt(1 + math.pi / 8 * variance)
    return torch.stack([scan_logit(part, rule) for part in f.split(offsets.diff().tolist())])


def check_bags(x: Tensor, offsets: Tensor, labels: Tensor, what: str) -> None:
    """Raise `DataError` unless these are packed bags with finite features and both labels."""
    if x.ndim != 2 or len(x) != int(offsets[-1]) or len(labels) != len(offsets) - 1:
        raise DataError(
            f"{what}: features {tuple(x.shape)} and {len(labels)} labels do not fit offsets of "
            f"{len(offsets) - 1} scans and {int(offsets[-1])} slices"
        )
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x).all(1)).nonzero()[0])
        raise DataError(f"{what}: the features of slice {bad} are NaN or infinite")
    other = labels[(labels != 0) & (labels != 1)]
    if len(other):
        raise DataError(f"{what}: labels must be 0 or 1, got {int(other[0])}; leave unlabelled scans out")
    if bool((labels == labels[0]).all()):
        raise DataError(f"{what}: all {len(labels)} are labelled {int(labels[0])}, both labels are needed")


def _standardisation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (D,) of float64 features; the deviation of a constant feature is 1."""
    mean, std = x.mean(0), x.std(0, correction=0)
    constant = std <= 1e-12 * x.abs().amax(0)  # a constant 0.1 has a mean an ulp away from it
    return mean, torch.where(constant, torch.ones_like(std), std)


@torch.no_grad()
def fit(
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    *,
    settings: HeadSettings,
    validation: Bags | None = None,
) -> tuple[VGPMIL, FitReport]:
    """Fit the head by coordinate ascent (Algorithm 1 without its kernel step).

    A sweep updates Θ, S, m and π, each once. q(w) starts at its prior; π starts at 0 in negative scans, where
    it is known, and at ½ in positive ones. (Random π as in the paper carry no label in the first sweep, and
    the product over 30 slices of ½ hides the label from every later one.)

    With validation scans the state of the sweep with the lowest calibrated validation log-loss is returned,
    and the fit stops when that loss has not fallen for `patience` sweeps. Without, the last state is
    returned. A fit that runs away (|μ| above `RUNAWAY` or not finite) or collapses (|μ| below `COLLAPSED`) is
    stopped with a warning; without validation scans the state with the lowest log-loss on the *training*
    scans is returned then.

    Args:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        settings: all there is to choose.
        validation: features, offsets and labels of other scans.

    Returns:
        The head in eval mode, and what happened.

    Raises:
        DataError: shapes do not fit, a feature is not finite, a label is not 0/1 or one label is missing.
    """
    bags = bag_index(offsets)
    check_bags(x, offsets, labels, "training scans")
    x = x.double()
    mean, std = _standardisation(x)
    inducing = choose_inducing(
        (x - mean) / std, offsets, labels, n_inducing=settings.n_inducing, seed=settings.seed
    )
    model = VGPMIL(inducing, mean, std, settings).to(x.device).eval()
    root = model.prior_root()
    phi, residual = model.project(x, root)
    watched_x, watched_offsets, watched_labels = (x, offsets, labels) if validation is None else validation
    if validation is not None:
        bag_index(watched_offsets)
        check_bags(watched_x, watched_offsets, watched_labels, "validation scans")
    watched_phi, watched_residual = (phi, residual) if validation is None else model.project(watched_x, root)

    density = settings.make_density()
    positive = labels[bags] == 1  # (N,)
    pull = settings.log_h * torch.where(positive, 1.0, -1.0).double()  # (N,)
    logits = pull.clamp(max=0.0)  # (N,)
    weights = _Weights(torch.zeros(len(inducing)).to(phi), torch.eye(len(inducing)).to(phi))
    mu, variance = moments(phi, residual, weights)

    elbo: list[float] = []
    largest: list[float] = []
    losses: list[float] = []
    best, best_sweep, best_loss = weights, 0, math.inf
    stopped: Literal["validation", "converged", "sweeps", "diverged"] = "sweeps"
    message = f"all {settings.sweeps} sweeps done"
    for sweep in range(1, settings.sweeps + 1):
        before = mu
        theta = density.theta(torch.sqrt(mu.square() + variance))  # (N,)
        weights = update_weights(phi, theta, logits)
        mu, variance = moments(phi, residual, weights)
        if settings.update == "gauss_seidel":
            logits = gauss_seidel(logits, mu, pull, offsets)
        else:
            logits = jacobi(logits, mu, pull, bags, len(labels))
        c = torch.sqrt(mu.square() + variance)
        elbo.append(float(evidence_bound(density, weights, c, mu, logits, bags, labels, settings.log_h)))
        largest.append(float(mu.abs().max()))

        # Written so that NaN is a divergence.
        if not (COLLAPSED < largest[-1] < RUNAWAY and math.isfinite(elbo[-1])):
            stopped = "diverged"
            how = "shrunk to 0" if largest[-1] <= COLLAPSED else "run away"
            judges = "training" if validation is None else "validation"
            message = (
                f"the fit has {how}: |μ| reached {largest[-1]:.3g} in sweep {sweep}; "
                f"the state of sweep {best_sweep} is kept, the best on {judges} scans"
            )
            warnings.warn(f"{message}; a logistic tail or a larger H keep it from diverging", stacklevel=3)
            break
        watched = moments(watched_phi, watched_residual, weights)
        loss = platt(scan_logits(*watched, watched_offsets, settings.rule), watched_labels)[2]
        losses.append(loss)
        if loss < best_loss:
            best, best_sweep, best_loss = weights, sweep, loss
        if validation is not None and sweep - best_sweep >= settings.patience:
            stopped = "validation"
            message = f"no better on validation scans for {settings.patience} sweeps, kept sweep {best_sweep}"
            break
        if float((mu - before).abs().max()) < settings.tolerance:
            stopped = "converged"
            message = f"converged in sweep {sweep}"
            break
    if validation is None and stopped != "diverged":
        best, best_sweep = weights, len(elbo)

    # S = (C Cᵀ)⁻¹, and its own lower Cholesky factor for GPyTorch.
    model.set_q(best.mean, torch.linalg.cholesky(torch.cholesky_inverse(best.precision_root)))
    report = FitReport(
        elbo=tuple(elbo),
        max_abs_mean=tuple(largest),
        validation_log_loss=tuple(losses) if validation is not None else (),
        best_sweep=best_sweep,
        stopped=stopped,
        message=message,
    )
    return model, report
