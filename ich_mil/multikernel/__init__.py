"""Multi-class Gaussian processes with weighted kernels, sampled by pseudo-marginal MCMC."""

import ich_mil.gp  # noqa: F401  silences warnings of importing GPyTorch
from ich_mil.multikernel.estimator import MultiKernelGP

__all__ = ["MultiKernelGP"]
