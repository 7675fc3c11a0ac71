"""vMMIC on one modality, with linear or kernel features.

Kernel features are those of a Nyström approximation of an RBF kernel with `POINTS` points (Williams and
Seeger, NeurIPS 2001); whether they are taken, and their length, is chosen by the inner folds.
"""

import warnings

import torch
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ich_mil.multimodal import MultimodalMIL
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.tuning import Predict, by_grid

POINTS = 30
"""Number of Nyström features."""

LENGTHS = (0.25, 1.0, 4.0)
"""ℓ² / D of the candidate kernels."""


def vmmic(train: FeatureSet, length: float | None, seed: int) -> Predict:
    """vMMIC; `length` is ℓ² / D of the kernel features, None for linear features."""
    steps = [StandardScaler()]
    if length is not None:
        gamma = 1 / (2 * length * train.x.shape[1])
        steps.append(Nystroem(gamma=gamma, n_components=POINTS, random_state=seed))
    features = make_pipeline(*steps).fit(train.x.double().numpy())
    model = MultimodalMIL(random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of separated bags: the prior bounds them
        model.fit([features.transform(train.x.double().numpy())], [owners(train)], train.labels.numpy())

    def predict(bags: FeatureSet) -> tuple[Tensor, Tensor]:
        x, of = features.transform(bags.x.double().numpy()), owners(bags)
        p = torch.from_numpy(model.predict_bag_proba([x], [of])).clamp(1e-12, 1 - 1e-12)
        (primary,) = model.predict_instance_proba([x], [of])
        return torch.logit(p), torch.from_numpy(primary)

    return predict


def owners(bags: FeatureSet) -> list[int]:
    """Number of the bag of each instance."""
    return torch.arange(bags.n_scans).repeat_interleave(bags.offsets.diff()).tolist()


PRIMARY = {
    "vMMIC, linear": by_grid(vmmic, (None,)),
    "vMMIC": by_grid(vmmic, (None, *LENGTHS)),
}
"""Methods by name."""
