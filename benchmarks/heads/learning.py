"""Effect of kernel learning on held-out log-loss: RSNA-150 splits and CQ500, against fixed kernels."""

from dataclasses import replace

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

from benchmarks.public_features import bags_of, cq500, rsna
from benchmarks.record import table
from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import calibrate
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings

SPLITS = 3
FIXED = HeadSettings()
LEARN = replace(FIXED, learn="kernel", sweeps=10)
D = 8.0  # ℓ = D is the paper's initial value
HEADS = {
    "logistic": FIXED,
    "logistic, v and ℓ learned": LEARN,
    "logistic, v and a length for each feature learned": replace(LEARN, ard=True),
    "logistic, v, ℓ and inducing points learned": replace(LEARN, learn="kernel_and_inducing"),
    "G-VGPMIL(1, 2.5)": replace(FIXED, density="gamma"),
    "G-VGPMIL(1, 2.5), v and ℓ learned": replace(LEARN, density="gamma"),
    "logistic, ℓ = D": replace(FIXED, lengthscale_squared=D),
    "logistic, v and ℓ learned from ℓ = D": replace(LEARN, lengthscale_squared=D),
    "G-VGPMIL(1, 2.5), ℓ = D": replace(FIXED, density="gamma", lengthscale_squared=D),
}


def learning() -> str:
    """Log-loss on held-out RSNA scans and CQ500.

    60 % of the RSNA scans are used for training, 20 % for early stopping and calibration.
    """
    features, external = rsna(), cq500()
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(SPLITS):
        rest, test = train_test_split(
            features.scans, test_size=0.2, stratify=features.labels, random_state=seed
        )
        labels = features.select(rest).labels
        train, held = train_test_split(rest, test_size=0.25, stratify=labels, random_state=seed)
        learn, watch = (bags_of(features.select(part)) for part in (train, held))
        out = features.select(test)
        for name, settings in HEADS.items():
            model, _ = fit(*learn[:3], settings=settings, validation=watch)
            model.calibration = calibrate(model, watch, samples=300)
            inner, outer = (
                predict(
                    model, one.x, one.offsets, one.scans, samples=300, calibration=model.calibration
                ).scan_mean
                for one in (out, external)
            )
            losses = float(log_loss(out.labels, inner)), float(log_loss(external.labels, outer))
            found.setdefault(name, []).append((*losses, float(roc_auc_score(external.labels, outer))))
    rows = []
    base = np.array(found["logistic"])
    for name, values in found.items():
        array = np.array(values)
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(array.mean(0), array.std(0), strict=True)]
        better = (array[:, :2] < base[:, :2]).sum(0)
        rows.append([name, *cells, f"{better[0]} and {better[1]} of {SPLITS}"])
    head = ["", "RSNA log-loss", "CQ500 log-loss", "CQ500 AUC", "splits with a lower log-loss than logistic"]
    return table(head, rows)
