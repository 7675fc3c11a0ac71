"""vMMIC and MICProB as scikit-learn users expect them: estimators over bags of several kinds of instance.

In: a list of feature arrays, one for each modality, the bag of every row, a label a bag. Out: probabilities
of bags and of primary instances with their uncertainty, and the coefficients of both tiers.

    model = MultimodalMIL().fit([X0, X1], [bags0, bags1], labels)
    p, std = model.predict_bag_proba([X0_new, X1_new], [bags0_new, bags1_new], return_std=True)
    model.coef_[model.coef_.lower > 0]

A bag is one wherever its id occurs; it may lack a modality. Labels and results come in the order of
`np.unique` of all ids of all modalities.

Shapes: B bags, N_m instances and D_m features of modality m.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ich_mil.errors import DataError
from ich_mil.gp.bags import Values
from ich_mil.gp.threads import few_threads
from ich_mil.multimodal.inference.coefficients import Prior
from ich_mil.multimodal.inference.gibbs import sample_posterior
from ich_mil.multimodal.inference.laplace import laplace
from ich_mil.multimodal.inference.restarts import search
from ich_mil.multimodal.inference.variational import Model
from ich_mil.multimodal.inputs import Scaling, rows_of, signs_of
from ich_mil.multimodal.layout import Columns, Rows, chunks_of
from ich_mil.multimodal.posterior import Posterior, coefficient_table
from ich_mil.multimodal.predict import CHUNK_NUMBERS, Predictions, plug_in, predict
from ich_mil.multimodal.settings import Method, check_parameters
from ich_mil.multimodal.storage import Stored, model_parts, read_pair, stored_model, write_pair

NAME, FORMAT = "multimodal", "ich_mil.multimodal.1"
"""Name of the two files of a model, and their format."""


class MultimodalMIL(BaseEstimator):
    """Two-tier probit model of bags with primary instances (vMMIC).

    The inner tier says which instances are primary, the outer tier what primary instances say of the bag:
    P(δ = 1) = Φ(a + x b) and P(y = 1 | δ) = Φ(α + Σ δ x β), with coefficients of their own for each modality.

    Parameters:
        method: `laplace` sums primary instances out, from the optima of `variational`; `gibbs` draws from the
            posterior itself. See docs/multimodal.md for what each is worth.
        restarts: of variational inference, weighed by their evidence bounds.
        sweeps: most sweeps of a restart.
        tolerance: a restart has converged when its bound rises by less than this share a sweep.
        screen: with more than twice as many bags the restarts see so many, drawn at random, and the best of
            them goes on with all; for `laplace` it is the start, and `bounds_` are of these bags.
        chains: of the Gibbs sampler.
        burn_in: sweeps of a chain before its first kept draw.
        draws: kept draws of a chain.
        intercept_variance: prior variance of intercepts.
        slope_variance: prior variance of all other coefficients, on standardised features.
        samples: draws of coefficients behind a prediction.
        random_state: seed of starts, chains and predictions.
        device: where to compute; None is the CPU.

    Attributes:
        classes_: [0, 1].
        coef_: table of all coefficients, on standardised features: tier (`primary`, `bag`), modality (-1 for
            the intercept of the bag), feature, mean, std, and the 95 % credible interval (lower, upper).
        posterior_: the draws behind the predictions.
        scalings_: standardisation of each modality.
        bounds_: evidence bound after each sweep of the best restart (not `gibbs`).
        restart_bounds_: bound of every restart (not `gibbs`).
        r_hat_, effective_samples_: of the worst coefficient (`gibbs`).
    """

    coef_: pd.DataFrame
    posterior_: Posterior
    scalings_: list[Scaling]

    def __init__(
        self,
        *,
        method: Method = "laplace",
        restarts: int = 8,
        sweeps: int = 2000,
        tolerance: float = 1e-5,
        screen: int = 1000,
        chains: int = 4,
        burn_in: int = 1000,
        draws: int = 1000,
        intercept_variance: float = 16.0,
        slope_variance: float = 4.0,
        samples: int = 1000,
        random_state: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        """Take parameters; they are checked in `fit`."""
        self.method, self.restarts, self.sweeps, self.tolerance = method, restarts, sweeps, tolerance
        self.screen = screen
        self.chains, self.burn_in, self.draws = chains, burn_in, draws
        self.intercept_variance, self.slope_variance = intercept_variance, slope_variance
        self.samples = samples
        self.random_state, self.device = random_state, device

    def fit(self, X: Sequence[Values], bags: Sequence[Values], labels: Values) -> Self:
        """Fit to labelled bags.

        Args:
            X: features (N_m, D_m) of each modality, in any unit.
            bags: id (N_m,) of the bag of each row, all text or all numbers.
            labels: (B,) in {0, 1}, in the order of `np.unique` of all ids.

        Raises:
            DataError: input that cannot be used.
            ConfigError: a parameter out of range.

        Warns:
            UserWarning: constant columns; fewer bags than coefficients; labels that are separated perfectly;
                no convergence.
        """
        check_parameters(self.get_params())
        rows, self.scalings_, names = rows_of(X, bags, None)
        signs = signs_of(labels, names).to(self._device)
        rows = [Rows(*(part.to(self._device) for part in one)) for one in rows]
        widths = [one.x.shape[1] for one in rows]
        columns = Columns.of(widths)
        if len(names) < columns.size:
            warnings.warn(
                f"{len(names)} bags are fewer than the {columns.size} coefficients of the bag tier: the "
                "prior decides what the labels leave open",
                stacklevel=2,
            )
        chunks = chunks_of(rows, len(names))
        prior = Prior(self.intercept_variance, self.slope_variance)
        model = Model(chunks, signs, columns, prior, [width + 1 for width in widths])
        generator = torch.Generator(self._device).manual_seed(self.random_state)
        with few_threads(sum(len(one.x) for one in rows)):
            if self.method == "gibbs":
                found = sample_posterior(
                    model, chains=self.chains, burn_in=self.burn_in, draws=self.draws, generator=generator
                )
                self.r_hat_, self.effective_samples_ = found.r_hat, found.effective_samples
                self.posterior_ = Posterior.of_draws(found, self.samples)
            else:
                limits = {name: getattr(self, name) for name in ("restarts", "screen", "sweeps", "tolerance")}
                fit = search(model, rows, **limits, generator=generator, whole=self.method == "variational")
                self.bounds_, self.restart_bounds_ = np.array(fit.bounds[fit.best]), fit.final.numpy()
                if self.method == "laplace":
                    found_modes = laplace(model, fit)
                    inner = [width + 1 for width in widths]
                    self.posterior_ = Posterior.of_modes(*found_modes, inner, self.samples, generator)
                else:
                    self.posterior_ = Posterior.of_fit(fit, self.samples, generator)
        self._adopt()
        score = plug_in(*self.posterior_.means, chunks, columns, len(names))
        if float(score[signs > 0].min()) > float(score[signs < 0].max()):
            warnings.warn(
                "the model separates the labels perfectly: the prior bounds the size of the coefficients, "
                "and probabilities near 0 and 1 depend on it",
                stacklevel=2,
            )
        return self

    def predict_bag_proba(
        self, X: Sequence[Values], bags: Sequence[Values], *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Probability (B,) that a bag is positive, and its standard deviation if asked for.

        Both are over draws of the coefficients and of the primary instances. A bag depends on its own rows
        alone, in any order.
        """
        said, _ = self._predictions(X, bags)
        mean, std = said.bag_mean.cpu().numpy(), said.bag_std.cpu().numpy()
        return (mean, std) if return_std else mean

    def predict_instance_proba(
        self, X: Sequence[Values], bags: Sequence[Values], *, return_std: bool = False
    ) -> list[np.ndarray] | tuple[list[np.ndarray], list[np.ndarray]]:
        """Probability (N_m,) that each row of each modality is a primary instance, given its features.

        With `return_std` its standard deviations over draws of the coefficients as well.
        """
        said, _ = self._predictions(X, bags)
        means, stds = (
            [one.cpu().numpy() for one in part] for part in (said.instance_mean, said.instance_std)
        )
        return (means, stds) if return_std else means

    def predict(self, X: Sequence[Values], bags: Sequence[Values]) -> np.ndarray:
        """The label (B,) of each bag at a probability of ½."""
        return (self._predictions(X, bags)[0].bag_mean.cpu().numpy() >= 0.5).astype(np.int64)

    def score(self, X: Sequence[Values], bags: Sequence[Values], labels: Values) -> float:
        """Accuracy over bags."""
        said, names = self._predictions(X, bags)
        truth = signs_of(labels, names).numpy() > 0
        return float(accuracy_score(truth, said.bag_mean.cpu().numpy() >= 0.5))

    def predict_plug_in(self, X: Sequence[Values], bags: Sequence[Values]) -> np.ndarray:
        """Bag probability (B,) at the posterior means of everything, as the thesis predicts.

        It ignores uncertainty and is overconfident; offered for comparison.
        """
        _, chunks, names = self._new_bags(X, bags)
        return plug_in(*self.posterior_.means, chunks, self.posterior_.columns, len(names)).cpu().numpy()

    def save(self, folder: Path) -> None:
        """Write the fitted model to a folder: safetensors and JSON."""
        check_is_fitted(self, "posterior_")
        write_pair(Path(folder), NAME, self.stored(), FORMAT)

    def stored(self) -> Stored:
        """Tensors and description of the fitted model."""
        parameters = {name: getattr(self, name) for name in MultimodalMIL().get_params()} | {"device": None}
        return stored_model(self.posterior_, self.scalings_, parameters)

    @classmethod
    def load(cls, folder: Path) -> "MultimodalMIL":
        """Read what `save` wrote; it predicts the same to the bit. It is on the CPU.

        Raises:
            ModelError: there is no such model.
        """
        return MultimodalMIL.of_stored(read_pair(Path(folder), NAME, FORMAT), Path(folder))

    @classmethod
    def of_stored(cls, stored: Stored, where: Path) -> "MultimodalMIL":
        """The model of `stored`; a `ModelError` names `where`."""
        posterior, scalings, parameters = model_parts(stored, list(MultimodalMIL().get_params()), where)
        model = MultimodalMIL(**parameters)
        model.posterior_, model.scalings_ = posterior, scalings
        model._adopt()
        return model

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu" if self.device is None else self.device)

    def _adopt(self) -> None:
        self.classes_ = np.array([0, 1])
        self.coef_ = coefficient_table(self.posterior_, self.scalings_)

    def _new_bags(self, X: Sequence[Values], bags: Sequence[Values]) -> tuple[list[Rows], list, np.ndarray]:
        check_is_fitted(self, "posterior_")
        rows, _, names = rows_of(X, bags, self.scalings_)
        device = self.posterior_.outer.device
        rows = [Rows(*(part.to(device) for part in one)) for one in rows]
        most = max(1, CHUNK_NUMBERS // len(self.posterior_.outer))
        return rows, chunks_of(rows, len(names), rows=most), names

    def _predictions(self, X: Sequence[Values], bags: Sequence[Values]) -> tuple[Predictions, np.ndarray]:
        rows, chunks, names = self._new_bags(X, bags)
        sizes = [len(one.x) for one in rows]
        with few_threads(sum(sizes)):
            said = predict(self.posterior_, chunks, sizes, len(names), seed=self.random_state)
        return said, names


class MICProB(MultimodalMIL):
    """The model with one modality, by Gibbs sampling: MICProB (Xiong et al. 2024).

    Parameters and attributes are those of `MultimodalMIL`; X and bags are lists of one array.
    """

    def __init__(
        self,
        *,
        chains: int = 4,
        burn_in: int = 1000,
        draws: int = 1000,
        intercept_variance: float = 16.0,
        slope_variance: float = 4.0,
        samples: int = 1000,
        random_state: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        """Take parameters; they are checked in `fit`."""
        super().__init__(
            method="gibbs",
            chains=chains,
            burn_in=burn_in,
            draws=draws,
            intercept_variance=intercept_variance,
            slope_variance=slope_variance,
            samples=samples,
            random_state=random_state,
            device=device,
        )

    def fit(self, X: Sequence[Values], bags: Sequence[Values], labels: Values) -> Self:
        """As `MultimodalMIL.fit`. Raises `DataError` for more than one modality."""
        if isinstance(X, list | tuple) and len(X) != 1:
            raise DataError(f"MICProB takes one modality, got {len(X)}; use MultimodalMIL(method='gibbs')")
        return super().fit(X, bags, labels)
