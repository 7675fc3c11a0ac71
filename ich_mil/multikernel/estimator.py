"""Multi-class, multiple-kernel Gaussian process classifier as scikit-learn users expect it.

In: sources, each a table (n, D) or a kernel matrix (n, n), and a class for each scan. Out: class
probabilities with all parameters integrated out, and the posterior of the weight θ_ch of each source in each
class.

    model = MultiKernelGP()
    model.fit({"brain": brain, "blood": blood}, kinds)
    p, std = model.predict_proba({"brain": new_brain, "blood": new_blood}, return_std=True)
    model.weights_

O'Harney, Marquand, Rubia et al. (2014), "Pseudo-marginal Bayesian multiple-class multiple-kernel learning for
neuroimaging data": f_c ~ GP(0, Σ_h θ_ch S_h), θ_ch ~ Gamma. Two classes inform θ_1h + θ_2h alone.

Shapes: n scans, m new scans, C classes, d sources.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.files import digest
from ich_mil.gp.threads import few_threads
from ich_mil.multikernel import storage
from ich_mil.multikernel.chains import Chains, Proposal, SamplerSettings
from ich_mil.multikernel.marginal import Method
from ich_mil.multikernel.predictive import predict
from ich_mil.multikernel.sources import JITTER, Source, Sources, check_scans, fit_sources, named, one_hot

R_HAT_LIMIT = 1.05
"""Above it the chains disagree."""
ESS_LIMIT = 100
"""Effective draws below which a weight is not known well enough to be read."""
PREDICT_DRAWS = 200
"""Draws of (θ, f) behind a prediction."""
SAVE_SECONDS = 30.0
"""Time between checkpoints."""
MODEL, CHECKPOINT = "ich_mil.multikernel.1", "ich_mil.multikernel.chains.1"


class MultiKernelGP(ClassifierMixin, BaseEstimator):
    """Softmax Gaussian process whose covariance is a weighted sum of kernels, sampled by MCMC.

    Args:
        kernels: for each source a GPyTorch kernel, "precomputed", or None for an RBF kernel of squared length
            scale D on standardised features; by name or in order. None is None for all. Kernels are used as
            they are, their own parameters are not learned.
        method: "pseudo_marginal" (exact), "laplace" (the marginal likelihood by Laplace's approximation) or
            "ancillary" (f and θ in turn, the paper's baseline).
        proposal: "surrogate" or "random_walk", the paper's.
        chains: at least 2.
        burn_in: steps in which proposals are adapted.
        draws: steps that are kept.
        importance: samples behind an estimate of the marginal likelihood.
        prior_shape: of the Gamma prior of θ_ch.
        prior_rate: likewise.
        normalise: divide each kernel matrix by its mean diagonal, so that weights can be compared.
        random_state: seed of everything random.
        device: a torch device.
        checkpoint: a file that the chains are written to, and continued from if it is there.

    Attributes:
        classes_: (C,).
        source_names_: (d,).
        weights_: table with a row for each class and source: class, source, mean, 2.5 %, 97.5 % of θ_ch.
        diagnostics_: r_hat and ess (bulk) for each class and source, largest R-hat, smallest ESS, acceptance.
        log_theta_: draws (chains, draws, C, d).
    """

    def __init__(
        self,
        *,
        kernels: Any = None,
        method: Method = "pseudo_marginal",
        proposal: Proposal = "surrogate",
        chains: int = 4,
        burn_in: int = 1000,
        draws: int = 1000,
        importance: int = 40,
        prior_shape: float = 1.0,
        prior_rate: float = 1.0,
        normalise: bool = True,
        random_state: int = 0,
        device: str = "cpu",
        checkpoint: str | Path | None = None,
    ) -> None:
        self.kernels, self.method, self.proposal, self.chains = kernels, method, proposal, chains
        self.burn_in, self.draws, self.importance = burn_in, draws, importance
        self.prior_shape, self.prior_rate, self.normalise = prior_shape, prior_rate, normalise
        self.random_state, self.device, self.checkpoint = random_state, device, checkpoint

    def _settings(self) -> SamplerSettings:
        return SamplerSettings(**{name: getattr(self, name) for name in SamplerSettings.__dataclass_fields__})

    def fit(self, sources: Sources, y: Any) -> Self:
        """Sample the posterior of θ and f.

        Args:
            sources: tables (n, D) or kernel matrices (n, n), by name or in order; row i is scan i everywhere.
            y: class of each scan (n,).

        Returns:
            Itself.

        Raises:
            DataError: a class with fewer than 5 scans; a source with NaN, constant, not aligned with y; a
                kernel matrix that is not symmetric or not positive definite.
            ConfigError: kernels or a checkpoint that do not belong to these sources.
            ValueError: a parameter out of range.

        Warns:
            UserWarning: the chains have not converged.
        """
        settings, device = self._settings(), torch.device(self.device)
        check_scans(sources, y)
        self.classes_, hot = one_hot(y, device)
        self._sources, self._S = fit_sources(
            sources, self.kernels, hot.shape[1], normalise=self.normalise, device=device
        )
        self.source_names_ = [source.name for source in self._sources]
        with few_threads(hot.shape[1]):
            chains = Chains(self._S, hot, settings)
            if self.checkpoint is None:
                chains.run()
            else:
                self._run_with_checkpoint(chains, hot, Path(self.checkpoint))
        state = chains.state
        self.log_theta_ = chains.log_theta.cpu().numpy()
        kept = torch.linspace(0, len(state["f_steps"]) - 1, max(1, PREDICT_DRAWS // settings.chains))
        kept = kept.round().to(torch.int64).unique()
        self._f = state["f"][:, kept].flatten(0, 1)  # (L, C, n)
        theta = state["draws"][:, state["f_steps"][kept]].exp()
        self._theta = theta.flatten(0, 1).unflatten(-1, (len(self.classes_), len(self._S)))
        self._summarise(chains.acceptance)
        return self

    def _run_with_checkpoint(self, chains: Chains, hot: Tensor, path: Path) -> None:
        """Continue from the file if it is there, write it now and then and at the end."""
        data = [self._S.cpu().numpy().tobytes(), hot.cpu().numpy().tobytes()]
        key = digest(json.dumps(chains.described(), sort_keys=True).encode(), *data)
        if path.exists():
            tensors, description = storage.read(path, CHECKPOINT)
            if description["key"] != key:
                raise ConfigError(
                    f"{path}: is the checkpoint of other data or settings; remove it or choose another file"
                )
            chains.restore(tensors)
        saved = time.monotonic()

        def save(_: int) -> None:
            nonlocal saved
            if time.monotonic() - saved >= SAVE_SECONDS:
                storage.write(path, CHECKPOINT, chains.checkpoint(), {"key": key})
                saved = time.monotonic()

        chains.run(each=save)
        storage.write(path, CHECKPOINT, chains.checkpoint(), {"key": key})

    def _summarise(self, acceptance: dict[str, float]) -> None:
        """Weights and diagnostics, and a warning where the chains have not converged."""
        log_theta = torch.as_tensor(self.log_theta_)
        flat = log_theta.flatten(2)  # (R, T, C·d)
        C, d = log_theta.shape[2:]
        hat, ess = r_hat(flat).reshape(C, d), bulk_ess(flat).reshape(C, d)
        theta = log_theta.exp().flatten(0, 1).numpy()
        low, high = np.quantile(theta, (0.025, 0.975), axis=0)
        rows = [
            (self.classes_[c], self.source_names_[h], theta[:, c, h].mean(), low[c, h], high[c, h])
            for c in range(C)
            for h in range(d)
        ]
        self.weights_ = pd.DataFrame(rows, columns=["class", "source", "mean", "2.5 %", "97.5 %"])
        self.diagnostics_ = {
            "r_hat": hat.numpy(),
            "ess": ess.numpy(),
            "largest_r_hat": float(hat.max()),
            "smallest_ess": float(ess.min()),
            "acceptance": acceptance,
        }
        if not (float(hat.max()) <= R_HAT_LIMIT and float(ess.min()) >= ESS_LIMIT):
            warnings.warn(
                f"the chains have not converged: R-hat up to {float(hat.max()):.3f} (limit {R_HAT_LIMIT}), "
                f"bulk ESS from {float(ess.min()):.0f} (limit {ESS_LIMIT}); raise burn_in and draws",
                stacklevel=3,
            )

    def predict_proba(
        self, sources: Sources, *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Probability of each class, θ and f integrated out.

        Args:
            sources: as in `fit`, by the same names or in the same order: tables (m, D), or, where the source
                is precomputed, the pair of kernel with the training scans (m, n) and own kernel (m,).
            return_std: return the standard deviation over the posterior too.

        Returns:
            (m, C), and the standard deviation (m, C) if asked for.

        Raises:
            DataError: sources unlike those of `fit`.
        """
        check_is_fitted(self)
        check_scans(sources)
        values = named(sources)
        if len(values) != len(self._sources):
            raise DataError(f"{len(values)} sources are given, the model has {len(self._sources)}")
        if hasattr(sources, "keys") and set(values) != set(self.source_names_):
            raise DataError(f"sources are {', '.join(values)}, the model has {', '.join(self.source_names_)}")
        in_order = (
            [values[name] for name in self.source_names_]
            if hasattr(sources, "keys")
            else list(values.values())
        )
        device, n = self._S.device, self._S.shape[1]
        pairs = [s.compare(value, n, device) for s, value in zip(self._sources, in_order, strict=True)]
        rows = {name: len(pair[1]) for name, pair in zip(self.source_names_, pairs, strict=True)}
        if len(set(rows.values())) > 1:
            raise DataError(f"sources have different numbers of scans: {rows}")
        cross, diagonal = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        with few_threads(n):
            mean, std = predict(self._theta, self._f, self._S, cross, diagonal, seed=self.random_state)
        return (mean.cpu().numpy(), std.cpu().numpy()) if return_std else mean.cpu().numpy()

    def predict(self, sources: Sources) -> np.ndarray:
        """The most probable class (m,)."""
        p = self.predict_proba(sources)
        return self.classes_[np.argmax(p, axis=1)]

    def score(self, sources: Sources, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict`."""
        check_scans(sources, y)
        return float(super().score(sources, y, sample_weight))

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a safetensors file. Kernel objects are not written: see `load`."""
        check_is_fitted(self)
        tensors = {
            "S": self._S,
            "f": self._f,
            "theta": self._theta,
            "log_theta": torch.as_tensor(self.log_theta_),
        }
        stored = [source.stored(h) for h, source in enumerate(self._sources)]
        tensors |= {name: tensor for group, _ in stored for name, tensor in group.items()}
        parameters = self.get_params(deep=False) | {"kernels": None, "checkpoint": None}
        described = {"sources": [entry for _, entry in stored], "acceptance": self.diagnostics_["acceptance"]}
        description = {"parameters": parameters, "classes": self.classes_.tolist()} | described
        storage.write(Path(path), MODEL, tensors, description)

    @classmethod
    def load(cls, path: str | Path, *, kernels: Any = None) -> Self:
        """Read what `save` wrote, to the CPU.

        Args:
            path: of the file.
            kernels: those of the fit, where kernel objects were given; checked against the stored matrices.

        Raises:
            ModelError: the file is missing, damaged or of another kind; kernels are missing or others.
        """
        tensors, description = storage.read(Path(path), MODEL)
        parameters = description["parameters"] | {"device": "cpu", "kernels": kernels}
        model = cls(**parameters)
        model._S, model._f, model._theta = (tensors[name] for name in ("S", "f", "theta"))
        model.log_theta_ = tensors["log_theta"].numpy()
        model.classes_ = np.array(description["classes"])
        model.source_names_ = [metadata["name"] for metadata in description["sources"]]
        choices = dict.fromkeys(model.source_names_) if kernels is None else named(kernels, "kernels")
        if not hasattr(kernels, "keys"):
            choices = dict(zip(model.source_names_, choices.values(), strict=False))
        model._sources = []
        for h, metadata in enumerate(description["sources"]):
            choice = choices.get(metadata["name"])
            if metadata["given"] and not metadata["precomputed"] and choice is None:
                raise ModelError(f"{path}: {metadata['name']} has a kernel of its own: load it with kernels=")
            source, S = Source.restored(h, metadata, tensors, choice, normalise=model.normalise)
            if S is not None and not torch.allclose(S, model._S[h], rtol=1e-6, atol=10 * JITTER):
                raise ModelError(f"{path}: the kernel of {metadata['name']} is not that of the fit")
            model._sources.append(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model._summarise(description["acceptance"])
        return model
