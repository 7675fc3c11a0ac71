"""Calibration error on CQ500 of the head and of max-pooled logistic regression, split by its causes.

In: public features of three networks, RSNA for training and CQ500 for evaluation. Out: a table.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.public_features import DATA
from benchmarks.record import table
from ich_mil.data.features import FeatureSet, read_feature_table
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.gp.head import Head

DRAWS = 200


def _max_pooled(features: FeatureSet) -> np.ndarray:
    return np.maximum.reduceat(features.x.numpy(), features.offsets[:-1].numpy())


def _ece(labels: np.ndarray, probability: np.ndarray) -> float:
    return float(scan_metrics(labels, probability)["ece"])


def calibration_on_cq500() -> str:
    """Table of ECE, ECE after shifting the logit to the prevalence of CQ500, and ECE expected by chance."""
    generator, rows = np.random.default_rng(0), []
    for run in range(3):
        train, test = (
            read_feature_table(DATA / "features" / f"{name}_d8_run{run}.csv") for name in ("rsna150", "cq500")
        )
        labels = test.labels.numpy()
        head = Head().fit(train.x, train.offsets, train.labels, groups=train.patients)
        pooled = make_pipeline(StandardScaler(), LogisticRegression()).fit(_max_pooled(train), train.labels)
        said = {
            "head": np.asarray(head.predict_bag_proba(test.x, test.offsets)),
            "logistic regression, max": pooled.predict_proba(_max_pooled(test))[:, 1],
        }
        differences = []
        for _ in range(5 * DRAWS):
            drawn = generator.integers(len(labels), size=len(labels))
            ours, theirs = (_ece(labels[drawn], p[drawn]) for p in said.values())
            differences.append(ours - theirs)
        low, high = np.quantile(differences, [0.025, 0.975])
        for name, p in said.items():
            z = logit(p.clip(1e-6, 1 - 1e-6))
            shift = brentq(lambda by, z=z: expit(z + by).mean() - labels.mean(), -5, 5)  # noqa: B023
            moved = expit(z + shift)
            chance = np.mean([_ece(generator.random(len(moved)) < moved, moved) for _ in range(DRAWS)])
            numbers = (_ece(labels, p), shift, _ece(labels, moved), chance)
            cells = [f"{value:.3f}" for value in numbers]
            rows.append([run, name, *cells, f"[{low:+.3f}, {high:+.3f}]" if name == "head" else ""])
    columns = ["run", "model", "ECE", "shift of the logit to the prevalence", "ECE then", "by chance alone"]
    return table([*columns, "head less regression, 95 %"], rows)
