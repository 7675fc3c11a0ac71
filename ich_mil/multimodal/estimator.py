"""vMMIC as scikit-learn users expect it: an estimator over bags of several kinds of instance.

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
from ich_mil.multimodal.inference.gaussian import fit_gaussian
from ich_mil.multimodal.inference.hmc import LONG, SHORT, sample
from ich_mil.multimodal.inference.likelihood import Likelihood
from ich_mil.multimodal.inference.target import Target
from ich_mil.multimodal.inputs import Scaling, rows_of, signs_of
from ich_mil.multimodal.layout import Columns, Rows, chunks_of
from ich_mil.multimodal.posterior import Posterior, coefficient_table
from ich_mil.multimodal.predict import CHUNK_NUMBERS, Predictions, plug_in, predict
from ich_mil.multimodal.settings import Prior, check_parameters
from ich_mil.multimodal.storage import Stored, model_parts, read_pair, stored_model, write_pair

NAME, FORMAT = "multimodal", "ich_mil.multimodal.2"
"""Name of the two files of a model, and their format."""

MOST_COEFFICIENTS = 2000
INSTANCES = 10_000
"""Instances above which a fit takes fewer gradients, for the same time."""
MATCH_SHARE, MATCH_MOST = 0.16, 640
"""Share of the gradients that the normal approximation takes, and their number at most."""
CHAINS, LEAST_LENGTH, MANY = 8, 10, 40_000
"""Chains, the length below which none is run, and the gradients from which trajectories are long."""


class MultimodalMIL(BaseEstimator):
    """Two-tier probit model of bags with primary instances (vMMIC).

    The inner tier says which instances are primary, the outer tier what primary instances say of the bag:
    P(δ = 1) = Φ(a + x b) and P(y = 1 | δ) = Φ(α + Σ δ x β), with coefficients of their own for each modality.

    Parameters:
        prior: of the slopes. `learned`: N(0, τ²), with a learned scale τ for each modality and tier;
            `thesis`: N(0, 4), which inflates slopes.
        gradients: of the likelihood that a fit may take, for Hamiltonian chains from a normal approximation
            of the posterior. 4,000 give short chains, 240,000 chains that converge (the reference). Above
            10,000 instances there are fewer in proportion; too few for chains leave the approximation.
        samples: draws of coefficients behind a prediction.
        random_state: seed of starts, chains and predictions.
        device: where to compute; None is the CPU.

    Attributes:
        classes_: [0, 1].
        coef_: table of all coefficients, on standardised features: tier (`primary`, `bag`), modality (-1 for
            the intercept of the bag), feature, mean, std, and the 95 % credible interval (lower, upper).
        posterior_: the draws behind the predictions.
        scalings_: standardisation of each modality.
        chains_: draws (8, L, C) of all C coefficients by chain, for diagnostics (`ich_mil.convergence`); None
            where no chain ran, and in a loaded model.
        acceptance_: mean probability of acceptance; None as `chains_`.
    """

    coef_: pd.DataFrame
    posterior_: Posterior
    scalings_: list[Scaling]
    chains_: torch.Tensor | None
    acceptance_: float | None

    def __init__(
        self,
        *,
        prior: Prior = "learned",
        gradients: int = 4000,
        samples: int = 1000,
        random_state: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        """Take parameters; they are checked in `fit`."""
        self.prior, self.gradients, self.samples = prior, gradients, samples
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
        rows = [Rows(*(tensor.to(self._device) for tensor in modality)) for modality in rows]
        widths = [modality.x.shape[1] for modality in rows]
        columns = Columns.of(widths)
        if len(names) < columns.size:
            warnings.warn(
                f"{len(names)} bags are fewer than the {columns.size} coefficients of the bag tier: the "
                "prior decides what the labels leave open",
                stacklevel=2,
            )
        theta, inner = self._draw(rows, signs, columns)
        self.posterior_ = Posterior.of_draws(theta, inner, self.samples)
        self._adopt()
        score = plug_in(*self.posterior_.means, chunks_of(rows, len(names)), columns, len(names))
        if float(score[signs > 0].min()) > float(score[signs < 0].max()):
            warnings.warn(
                "the model separates the labels perfectly: the prior bounds the size of the coefficients, "
                "and probabilities near 0 and 1 depend on it",
                stacklevel=2,
            )
        return self

    def _draw(
        self, rows: Sequence[Rows], signs: torch.Tensor, columns: Columns
    ) -> tuple[torch.Tensor, list[int]]:
        """Draws (N, C) of all coefficients, and the number of inner ones of each modality."""
        likelihood = Likelihood(rows, signs, columns)
        if likelihood.size > MOST_COEFFICIENTS:
            raise DataError(
                f"{likelihood.size:,} coefficients, {MOST_COEFFICIENTS:,} are allowed; reduce the columns, "
                "such as by principal components"
            )
        generator = torch.Generator(self._device).manual_seed(self.random_state)
        with few_threads(likelihood.instances):
            return self._sampled(Target(likelihood, self.prior), generator), likelihood.widths

    def _sampled(self, target: Target, generator: torch.Generator) -> torch.Tensor:
        gradients = self.gradients * min(1, INSTANCES / target.likelihood.instances)
        matching = min(MATCH_SHARE * gradients, MATCH_MOST)
        target, q = fit_gaussian(target, int(matching), generator)
        steps = LONG if gradients >= MANY else SHORT
        length = int((gradients - matching) / (CHAINS * sum(steps) / 2))
        self.chains_ = self.acceptance_ = None
        if length < LEAST_LENGTH:
            return target.theta(q.draw(self.samples, generator))
        chains = sample(target, q, chains=CHAINS, length=length, steps=steps, generator=generator)
        self.chains_, self.acceptance_ = target.theta(chains.draws), chains.acceptance
        return self.chains_.flatten(0, 1)

    def predict_bag_proba(
        self, X: Sequence[Values], bags: Sequence[Values], *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Probability (B,) that a bag is positive, and its standard deviation if asked for.

        Both are over draws of the coefficients and of the primary instances. A bag depends on its own rows
        alone, in any order.
        """
        result, _ = self._predictions(X, bags)
        mean, std = result.bag_mean.cpu().numpy(), result.bag_std.cpu().numpy()
        return (mean, std) if return_std else mean

    def predict_instance_proba(
        self, X: Sequence[Values], bags: Sequence[Values], *, return_std: bool = False
    ) -> list[np.ndarray] | tuple[list[np.ndarray], list[np.ndarray]]:
        """Probability (N_m,) that each row of each modality is a primary instance, given its features.

        With `return_std` its standard deviations over draws of the coefficients as well.
        """
        result, _ = self._predictions(X, bags)
        means, stds = (
            [x.cpu().numpy() for x in tensors] for tensors in (result.instance_mean, result.instance_std)
        )
        return (means, stds) if return_std else means

    def predict(self, X: Sequence[Values], bags: Sequence[Values]) -> np.ndarray:
        """The label (B,) of each bag at a probability of ½."""
        return (self._predictions(X, bags)[0].bag_mean.cpu().numpy() >= 0.5).astype(np.int64)

    def score(self, X: Sequence[Values], bags: Sequence[Values], labels: Values) -> float:
        """Accuracy over bags."""
        result, names = self._predictions(X, bags)
        truth = signs_of(labels, names, both=False).numpy() > 0
        return float(accuracy_score(truth, result.bag_mean.cpu().numpy() >= 0.5))

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
        model.chains_ = model.acceptance_ = None
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
        rows = [Rows(*(tensor.to(device) for tensor in modality)) for modality in rows]
        most = max(1, CHUNK_NUMBERS // len(self.posterior_.outer))
        return rows, chunks_of(rows, len(names), rows=most), names

    def _predictions(self, X: Sequence[Values], bags: Sequence[Values]) -> tuple[Predictions, np.ndarray]:
        rows, chunks, names = self._new_bags(X, bags)
        sizes = [len(modality.x) for modality in rows]
        with few_threads(sum(sizes)):
            result = predict(self.posterior_, chunks, sizes, len(names), seed=self.random_state)
        return result, names
