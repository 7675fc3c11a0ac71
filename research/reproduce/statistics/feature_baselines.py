"""Baselines trained on slice features: logistic regression on pooled features, and attention MIL.

All scans are labelled; no patient is in two of the sets, see `research.reproduce.tasks`.

* Pooled logistic regression: z_b = mean or max over the slices of scan b, then logistic regression on z.
* Attention MIL (Ilse, Tomczak and Welling 2018, Eq. 9; extra `bench`): h = relu(A x + c), gated attention
  f = wᵀ(tanh(V h) ⊙ sigmoid(U h)), z_b = Σ_n softmax_b(f)_n h_n, then a linear logit. The layers are those
  of torchmil. Scans are processed one at a time, as in that paper, so there is no padding or masking.

Shapes: B scans, N slices (packed), D features.
"""

import copy
from typing import Any, Literal

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from ich_mil.errors import ConfigError, DataError
from ich_mil.evaluate.scores import Scores
from ich_mil.gp.inference.folds import folds_of
from ich_mil.kernels.segments import bag_index, bag_max, bag_sum
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.splits import draw_splits

How = Literal["mean", "max"]

FOLDS = 5
"""Number of inner folds for the choice of C; fewer if a label has fewer patients."""

PENALTIES = np.logspace(-4, 2, 7)
"""Candidate values of C, the inverse strength of the L2 penalty on standardised features."""

STOP_ON = 0.2
"""Fraction of the training patients used for early stopping."""

HIDDEN = 64
"""Number of units of h and of the attention, as in the attention of the CNN."""

LEARNING_RATE, WEIGHT_DECAY = 5e-4, 1e-4
"""Settings of Adam, from Ilse et al. for bags of MNIST."""

PATIENCE = 20
"""Number of epochs without a lower validation loss before training stops."""


def pool(values: Tensor, offsets: Tensor, how: How) -> Tensor:
    """Mean or max over the slices of each scan: (N, ...) to (B, ...) in float64."""
    bags, n_bags = bag_index(offsets), len(offsets) - 1
    values = values.double().movedim(0, -1)
    pooled = bag_max(values, bags, n_bags) if how == "max" else bag_sum(values, bags, n_bags) / offsets.diff()
    return pooled.movedim(-1, 0).contiguous()


def pooled_logistic(train: FeatureSet, test: FeatureSet, *, how: How, seed: int) -> Scores:
    """Logistic regression on the pooled features of each scan, by `how` mean or max over the slices.

    Features are standardised. C is chosen from `PENALTIES` by the log-loss of inner folds over the training
    patients (`seed`), with the scaler refitted in each fold.

    Returns:
        Scan probabilities. With `how='mean'` also the logit of each single slice, whose mean is the logit of
        the scan. With `how='max'` no slice score: most slices are not the maximum of any feature.

    Raises:
        DataError: a label has too few patients.
    """
    y, owner = train.labels.numpy(), np.asarray(train.patients)
    folds = min(FOLDS, *(len(np.unique(owner[y == label])) for label in (0, 1)))
    inner = folds_of(train.labels, train.patients, folds=folds, seed=seed) if folds > 1 else []
    if not inner or any(len(np.unique(y[list(part)])) < 2 for part, _ in inner):
        raise DataError(
            f"choosing C needs folds by patient with both labels, and {len(np.unique(owner))} training "
            "patients are too few for that; train on more patients"
        )
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000)),
        {"logisticregression__C": PENALTIES},
        # a held-out fold may lack a label if some patients have scans of both labels
        scoring=make_scorer(
            log_loss, response_method="predict_proba", greater_is_better=False, labels=[0, 1]
        ),
        cv=inner,
        error_score="raise",
    )
    search.fit(pool(train.x, train.offsets, how).numpy(), y)
    return Scores(
        f"logistic regression, {how}-pooled",
        search.predict_proba(pool(test.x, test.offsets, how).numpy())[:, 1],
        search.decision_function(test.x.double().numpy()) if how == "mean" else None,
    )


def hold_out(train: FeatureSet, *, seed: int) -> tuple[FeatureSet, FeatureSet]:
    """Draw training scans and early-stopping scans (`STOP_ON` of the patients), stratified by label."""
    table = draw_splits(train.table, validation=STOP_ON, test=0, seed=seed)
    learn, stop = (list(table.scan[table.split == split]) for split in ("train", "validation"))
    return train.select(learn), train.select(stop)


def attention_model() -> Any:
    """Import the model class of torchmil, which takes seconds; `ConfigError` if it is not installed."""
    try:
        from torchmil.models import ABMIL
    except ImportError as error:
        raise ConfigError(
            f"attention MIL needs torchmil ({error}): pip install 'ich-mil[bench]', or leave it out"
        ) from error
    return ABMIL


def _bags(scaler: StandardScaler, features: FeatureSet) -> list[Tensor]:
    """Each scan, standardised, as a batch of one: (1, n, D)."""
    x = torch.tensor(scaler.transform(features.x.double().numpy()), dtype=torch.float32)
    return [part[None] for part in x.split(features.offsets.diff().tolist())]


def attention_mil(
    train: FeatureSet, validation: FeatureSet, test: FeatureSet, *, seed: int, epochs: int = 200
) -> Scores:
    """Gated attention MIL of torchmil, on the CPU, with early stopping on the loss of the validation scans.

    Each step uses one scan, in a new order in each epoch. Features are standardised by the training slices.
    The state of the epoch with the lowest validation log-loss is used. `seed` draws the weights and the order
    of the scans; the global torch generator is not changed.

    Returns:
        Scan probabilities, and the attention value of each slice before the softmax, which does not depend on
        the number of slices.

    Raises:
        ConfigError: torchmil is not installed.
    """
    model_class = attention_model()
    scaler = StandardScaler().fit(train.x.double().numpy())
    bags, stop, out = (_bags(scaler, part) for part in (train, validation, test))
    n_features = train.x.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = model_class(
            in_shape=(n_features,),
            att_dim=HIDDEN,
            gated=True,
            feat_ext=nn.Sequential(nn.Linear(n_features, HIDDEN), nn.ReLU()),
        )
        optimiser = torch.optim.Adam(
            model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
        )
        target = train.labels.float()
        lowest, since, best = float("inf"), 0, copy.deepcopy(model.state_dict())
        for _ in range(epochs):
            model.train()
            for b in torch.randperm(len(bags)).tolist():
                optimiser.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(model(bags[b]), target[b : b + 1]).backward()
                optimiser.step()
            logits = _predict(model, stop)[0]
            loss = float(nn.functional.binary_cross_entropy_with_logits(logits, validation.labels.double()))
            since += 1
            if loss < lowest:
                lowest, since, best = loss, 0, copy.deepcopy(model.state_dict())
            if since == PATIENCE:
                break
    model.load_state_dict(best)
    logits, attention = _predict(model, out)
    return Scores("attention MIL (torchmil)", logits.sigmoid().numpy(), attention.numpy())


def _predict(model: nn.Module, bags: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Logits (B,) and attention values before the softmax (N,), in float64."""
    model.eval()
    with torch.no_grad():
        found = [model(bag, return_att=True) for bag in bags]
    logits, attention = zip(*found, strict=True)
    return torch.cat(logits).double(), torch.cat([one[0] for one in attention]).double()
