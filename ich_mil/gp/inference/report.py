"""Report of a fit: its history by sweep and the reason of its end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Stopped = Literal["validation", "converged", "sweeps", "diverged"]


@dataclass(frozen=True)
class FitReport:
    """History of a fit by sweep (the first entry is sweep 1), and the reason it stopped.

    Attributes:
        elbo: ELBO after each sweep. Exact for the logistic density; for other densities of ψ-VGPMIL up to a
            constant and log Z (Eq. 20), which depends on the kernel. For the family large_margin it is the
            objective that is maximised, which bounds no evidence. Empty for gibbs, which samples.
        max_abs_mean: largest |μ| of a training slice after each sweep.
        validation_log_loss: loss of the validation scans after Platt scaling on them (`platt_loss`); empty
            without validation scans. With a learned kernel, of the last ascent only.
        best_sweep: the sweep whose q(w) was returned; 0 is the start.
        stopped: the reason the fit ended.
        message: the reason as a sentence.
        r_hat: largest rank-normalised split R-hat of μ over the monitored slices; None without sampling.
        effective_samples: smallest bulk effective sample size of μ over these slices; None without sampling.
    """

    elbo: tuple[float, ...]
    max_abs_mean: tuple[float, ...]
    validation_log_loss: tuple[float, ...]
    best_sweep: int
    stopped: Stopped
    message: str
    r_hat: float | None = None
    effective_samples: float | None = None


def join_reports(reports: Sequence[FitReport]) -> FitReport:
    """Concatenate the reports of consecutive ascents; the reason of the end is that of the last."""
    last = reports[-1]
    before = sum(len(report.elbo) for report in reports[:-1])
    return replace(
        last,
        elbo=tuple(value for report in reports for value in report.elbo),
        max_abs_mean=tuple(value for report in reports for value in report.max_abs_mean),
        best_sweep=before + last.best_sweep,
    )
