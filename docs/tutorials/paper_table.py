# %% [markdown]
# # Reproducing a paper's table
#
# Castro-Macías et al. (2024) train VGPMIL and G-VGPMIL on the slice features of 150 RSNA scans and test them on
# 490 CQ500 scans. The tables of features are public (`rsna150_d8_run2.csv` and `cq500_d8_run2.csv`) and are not part
# of this repository: `ICH_MIL_DATA` names the folder that holds them in `features/` ([data](../../data/)). The whole protocol with five seeds, baselines, intervals
# and figures is one command, `python -m research.reproduce features`; here is its core with one seed.

# %%
import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from ich_mil.gp.head import Head

folder = Path(os.environ.get("ICH_MIL_DATA", "data")) / "features"
available = (folder / "rsna150_d8_run2.csv").exists()
print("tables found" if available else f"no tables in {folder}: the rest of this page stays empty")


# %%
def read(name):
    """Features (N, 8), the bag of each slice (N,), labels (B,) in the order of the bags."""
    table = pd.read_csv(folder / name).sort_values("bag_name", kind="stable")
    x = table.filter(like="feature_").to_numpy()
    labels = table.groupby("bag_name").bag_label.first()
    return x, table.bag_name.to_numpy(), labels.to_numpy()


if available:
    X, bags, labels = read("rsna150_d8_run2.csv")
    X_test, bags_test, labels_test = read("cq500_d8_run2.csv")
    rows = {}
    for name, settings in {"VGPMIL": {"density": "logistic"}, "G-VGPMIL": {"density": "gamma"}}.items():
        head = Head(n_inducing=100, **settings).fit(X, bags, labels)
        p = head.predict_bag_proba(X_test, bags_test)
        rows[name] = {
            "AUC": roc_auc_score(labels_test, p),
            "accuracy": accuracy_score(labels_test, p > 0.5),
            "log-loss": log_loss(labels_test, p),
        }
    share = np.full(len(labels_test), labels.mean())
    rows["prevalence"] = {
        "AUC": 0.5,
        "accuracy": accuracy_score(labels_test, share > 0.5),
        "log-loss": log_loss(labels_test, share),
    }
    print(pd.DataFrame(rows).T.round(3))

# %% [markdown]
# Differences to the printed table and their reasons, with intervals and published figures side by side:
# [results](../../results/). Intervals matter here: with 490 scans an AUC of 0.92 is known to about ± 0.025, so two
# models whose AUCs differ by 0.01 are not told apart by one split.
