"""GPyTorch model of the head: a whitened sparse Gaussian process over standardised slice features.

In: raw features (n, D). Out: q(f), a `MultivariateNormal` (Castro-Macías et al. 2024, Eq. 30), or the
quantities for fit and sampling:

    L Lᵀ = K_ZZ + εI          Φ = L⁻¹ K_ZX          q(w) = N(m, S),  u = L w
    μ = Φᵀ m                  σ² = diag(Φᵀ S Φ) + k(x,x) + ε - ΣΦ²

ε is a nugget of the prior, as in GPyTorch. It is part of the variance at x as well as of K_ZZ, which keeps
the two consistent and the residual variance positive. All computation is in float64.

Shapes: n slices, D features, M inducing points.
"""

import copy
import math
import warnings
from typing import Self

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.settings import HeadSettings

JITTER = 1e-6
"""ε on the diagonal of K_ZZ, and nugget of the prior at every slice."""

CLIP = 1e3
"""Distance from the training mean, in training standard deviations, at which new features are clipped. None
of N training slices lies further than √N, but a new value of a feature that hardly varied in training may lie
anywhere."""


def identity(m: int, like: Tensor) -> Tensor:
    """Identity (M, M), created on the device of `like`: a copy from the host would wait for the device."""
    return torch.eye(m, dtype=like.dtype, device=like.device)


def lower_root(S: Tensor) -> Tensor:
    """Lower Cholesky factor of a covariance S (M, M) of q(w), or of its inverse.

    Raises:
        DataError: S is not positive definite in float64.
    """
    root, failed = torch.linalg.cholesky_ex(S)
    if failed:
        raise DataError(
            f"the covariance of the {len(S)} inducing values cannot be factorised: settings of the kernel "
            "(variance, bias) are too large for float64; lower them"
        )
    return root


def make_kernel(settings: HeadSettings, n_features: int) -> Kernel:
    """Build the kernel of the settings in float64: scaled, plus a constant if the bias is not 0.

    Raises:
        ConfigError: no such class in `gpytorch.kernels`, or a class that needs further arguments.
    """
    kind = getattr(gpytorch.kernels, settings.kernel, None)
    if not (isinstance(kind, type) and issubclass(kind, Kernel)) or kind is Kernel:
        raise ConfigError(f"head.kernel: gpytorch.kernels has no kernel {settings.kernel!r}; try 'RBFKernel'")
    try:
        base = kind(ard_num_dims=n_features if settings.ard else None)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            f"head.kernel: {settings.kernel} cannot be made from its name alone ({error}); in Python, give "
            "the kernel object itself"
        ) from error
    scaled = gpytorch.kernels.ScaleKernel(base).double()
    # A tensor, because GPyTorch rounds a plain number to float32.
    scaled.outputscale = torch.tensor(settings.variant.variance, dtype=torch.float64)
    if base.has_lengthscale:
        # ℓ of the paper is a squared length scale; GPyTorch's lengthscale is √ℓ.
        root = math.sqrt(settings.lengthscale_squared or settings.variant.length_per_feature * n_features)
        base.lengthscale = torch.full_like(base.lengthscale, root)
    if settings.variant.bias == 0:
        return scaled
    constant = gpytorch.kernels.ConstantKernel().double()
    constant.constant = torch.tensor(settings.variant.bias, dtype=torch.float64)
    return scaled + constant


def check_kernel(kernel: Kernel, x: Tensor) -> None:
    """Raise `ConfigError` unless the kernel gives a (2, 2) matrix for two slices x (2, D)."""
    try:
        shape = tuple(kernel(x).to_dense().shape)
    except RuntimeError as error:
        raise ConfigError(
            f"the kernel cannot be computed of {x.shape[1]} features a slice ({error}); give one that can"
        ) from error
    if shape != (2, 2):
        raise ConfigError(
            f"the kernel gives a matrix {shape} of 2 slices, not (2, 2); give one without a batch shape, "
            "tasks or derivatives"
        )


class SparseGP(gpytorch.models.ApproximateGP):
    """Sparse Gaussian process with whitened q(w) = N(m, S) over inducing values u = L w.

    `model(x)` on raw (n, D) features gives q(f) as a `MultivariateNormal`. Features are standardised
    internally.

    Attributes:
        settings: settings of the fit.
        given: which of `kernel` and `density` were passed as objects instead of by the settings.
        fixed: names of the kernel parameters that required no gradient; they are not learned.
        draws: (L, M) posterior draws of w if the head was fitted by sampling, else None. q(w) is then the
            Gaussian with the posterior mean and covariance, estimated from the conditionals of w.
        calibration: calibration of scan and slice probabilities, or None.
        feature_names: names of the D columns of the training features, or None.
        x_mean, x_std: (D,) mean and standard deviation of the training slices; `x_std` is 1 for a constant
            feature.
    """

    x_mean: Tensor
    x_std: Tensor
    draws: Tensor | None
    feature_names: tuple[str, ...] | None = None

    def __init__(
        self,
        inducing: Tensor,
        x_mean: Tensor,
        x_std: Tensor,
        settings: HeadSettings,
        *,
        kernel: Kernel | None = None,
    ) -> None:
        """Build the model with q(w) at the prior N(0, I).

        Args:
            inducing: (M, D) standardised inducing points.
            x_mean: (D,) mean of the training slices.
            x_std: (D,) standard deviation of the training slices.
            settings: settings of the head; the kernel is used here.
            kernel: kernel in place of that of the settings; it is used without a scale around it.
        """
        n_inducing, n_features = inducing.shape
        distribution = CholeskyVariationalDistribution(n_inducing, mean_init_std=0.0)
        super().__init__(
            VariationalStrategy(
                self, inducing, distribution, learn_inducing_locations=False, jitter_val=JITTER
            )
        )
        self.settings = settings
        self.given: tuple[str, ...] = () if kernel is None else ("kernel",)
        self.calibration: Calibration | None = None
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = make_kernel(settings, n_features) if kernel is None else kernel
        self.register_buffer("x_mean", x_mean)
        self.register_buffer("x_std", x_std)
        self.register_buffer("draws", None)
        self.double()
        # Otherwise GPyTorch overwrites q(w) with the prior on the first call.
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.fixed = frozenset(
            name for name, parameter in self.covar_module.named_parameters() if not parameter.requires_grad
        )
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Prior over f at standardised x."""
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, inputs: Tensor, prior: bool = False, **kwargs: object) -> MultivariateNormal:
        """q(f), or the prior p(f), at raw features (n, D)."""
        # GPyTorch caches L with its autograd graph in the strategy. The backward pass of a second call would
        # go through that graph again, and a model that holds a graph cannot be copied. A shallow copy of the
        # strategy takes the cache instead.
        strategy = copy.copy(self.variational_strategy)
        strategy._clear_cache()
        return strategy(self.standardise(inputs), prior=prior, **kwargs)

    def check_width(self, x: Tensor) -> None:
        """Raise `DataError` unless x has the D columns of the training features."""
        if x.ndim != 2 or x.shape[1] != len(self.x_mean):
            raise DataError(
                f"the head takes {len(self.x_mean)} features a slice, got features {tuple(x.shape)}"
            )

    def clip(self, x: Tensor) -> Tensor:
        """Clip raw features (..., D) to `CLIP` training standard deviations around the training mean."""
        low, high = (self.x_mean + sign * CLIP * self.x_std for sign in (-1, 1))
        return torch.minimum(torch.maximum(x, low.to(x)), high.to(x))

    def standardise(self, x: Tensor) -> Tensor:
        """Standardise raw features (..., D), in float64."""
        return (x.to(self.x_mean) - self.x_mean) / self.x_std

    @property
    def inducing(self) -> Tensor:
        """Inducing points Z (M, D), standardised."""
        return self.variational_strategy.inducing_points

    @property
    def q_mean(self) -> Tensor:
        """Mean m (M,) of q(w)."""
        return self.variational_strategy._variational_distribution.variational_mean

    @property
    def q_root(self) -> Tensor:
        """Lower Cholesky factor (M, M) of the covariance S of q(w)."""
        return self.variational_strategy._variational_distribution.chol_variational_covar

    def set_q(self, mean: Tensor, root: Tensor) -> Self:
        """Set q(w) to N(mean, root rootᵀ) and clear the cache of GPyTorch."""
        with torch.no_grad():
            self.q_mean.copy_(mean)
            self.q_root.copy_(root)
        self.variational_strategy._clear_cache()
        return self

    def prior_root(self) -> Tensor:
        """Lower Cholesky factor L (M, M) of K_ZZ + εI; the jitter ε is raised, with a warning, if this fails.

        Raises:
            DataError: K_ZZ cannot be factorised even with the largest jitter tried.
        """
        K = self.covar_module(self.inducing).to_dense()  # (M, M)
        jitter = self.variational_strategy.jitter_val
        for _ in range(6):
            root, failed = torch.linalg.cholesky_ex(K + jitter * identity(len(K), K))
            if not failed:
                if jitter != self.variational_strategy.jitter_val:
                    warnings.warn(
                        f"the kernel matrix of the {len(K)} inducing points is singular at a jitter of "
                        f"{self.variational_strategy.jitter_val:.1e}: raised to {jitter:.1e}",
                        stacklevel=2,
                    )
                    self.variational_strategy.jitter_val = jitter
                return root
            jitter *= 10
        raise DataError(
            f"the kernel matrix of the {len(K)} inducing points cannot be factorised even with a jitter of "
            f"{jitter / 10:.1e}; use fewer inducing points or a shorter length scale"
        )

    def prior_variance(self, x: Tensor) -> Tensor:
        """Prior variance k(x,x) + ε (n,) at standardised x (n, D); 1 in the preset `public`."""
        if self.settings.variant.unit_prior:
            return torch.ones_like(x[:, 0])
        return self.covar_module(x, diag=True) + self.variational_strategy.jitter_val

    def project(self, x: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Φ and the residual prior variance given the inducing values.

        Args:
            x: (n, D) standardised features.
            root: (M, M) from `prior_root`.

        Returns:
            Φ = L⁻¹ K_ZX (M, n) and the residual k(x,x) + ε - ΣΦ² (n,), at least 0. Differentiable in x.
        """
        phi = torch.linalg.solve_triangular(root, self.covar_module(self.inducing, x).to_dense(), upper=False)
        return phi, (self.prior_variance(x) - phi.square().sum(0)).clamp(min=0.0)

    def residual_root(self, x: Tensor, phi: Tensor, residual: Tensor) -> Tensor:
        """Lower Cholesky factor of the residual prior covariance of slices given the inducing values.

        Args:
            x: (n, D) standardised features.
            phi: (M, n) from `project`.
            residual: (n,) from `project`.

        Returns:
            Factor (n, n) of K_XX - ΦᵀΦ with at least `residual` on its diagonal.

        Raises:
            DataError: the covariance cannot be factorised.
        """
        R = self.covar_module(x).to_dense() - phi.mT @ phi
        # `residual` includes the nugget, or the unit prior of the public code. If it is smaller than the
        # diagonal of R, that diagonal is kept, because R would not be positive definite otherwise.
        R.diagonal().add_((residual - R.diagonal()).clamp(min=self.variational_strategy.jitter_val / 2))
        root, failed = torch.linalg.cholesky_ex(R)
        if failed:  # rounding changes eigenvalues by 1e-16 of the variance; the smallest eigenvalue is ε
            root, failed = torch.linalg.cholesky_ex(R + 1e-9 * float(residual.max()) * identity(len(R), R))
        if failed:
            raise DataError(
                "the covariance that the inducing points leave open between the slices of a scan cannot be "
                f"factorised, at a jitter of {self.variational_strategy.jitter_val:.1e}; take a kernel that "
                "is positive definite for so many features"
            )
        return root
