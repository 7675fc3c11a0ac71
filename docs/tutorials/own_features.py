# %% [markdown]
# # Heads on your own features
#
# A head is a sparse Gaussian process for multiple-instance learning: labels are known for bags (scans), wanted
# for bags *and* instances (slices). It needs feature vectors only, from any network or table.
#
# This page is the script `docs/tutorials/own_features.py`; `make docs` executes it.

# %% [markdown]
# ## Bags
#
# 120 bags of 10 to 30 instances with 8 features. A positive bag holds one to five instances that lie elsewhere in
# feature space; their positions are not given to the head.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ich_mil.gp.head import Head

rng = np.random.default_rng(0)


def draw(n_bags):
    """Features (N, 8), the bag of each instance (N,), labels of bags (B,) and of instances (N,)."""
    labels = rng.integers(0, 2, n_bags)
    sizes = rng.integers(10, 31, n_bags)
    bags = np.repeat(np.arange(n_bags), sizes)
    hidden = np.zeros(len(bags), dtype=int)
    for bag in np.flatnonzero(labels):
        hidden[rng.choice(np.flatnonzero(bags == bag), rng.integers(1, 6), replace=False)] = 1
    features = rng.standard_normal((len(bags), 8))
    features[:, :2] += 2.0 * hidden[:, None]
    return features, bags, labels, hidden


X, bags, labels, _ = draw(120)
X_new, bags_new, labels_new, hidden_new = draw(80)

# %% [markdown]
# ## Fit and predict
#
# `bags` holds the bag of each row; `labels` follow `np.unique(bags)`. Kernel and calibration are chosen on
# held-out folds of the training bags.

# %%
head = Head(density="gamma", alpha=1.0, beta=2.5, n_inducing=50)
head.fit(X, bags, labels)
p, std = head.predict_bag_proba(X_new, bags_new, return_std=True)
q = head.predict_instance_proba(X_new, bags_new)
print(f"bags:      AUC {roc_auc_score(labels_new, p):.3f}, log-loss {log_loss(labels_new, p):.3f}")
print(f"instances: AUC {roc_auc_score(hidden_new, q):.3f}")

# %% [markdown]
# Beside it, a baseline that every result needs: logistic regression on the mean and the maximum of each bag.

# %%


def pooled(x, bag):
    """Mean and maximum of the features of each bag, (B, 16)."""
    return np.array([np.r_[x[bag == b].mean(0), x[bag == b].max(0)] for b in np.unique(bag)])


baseline = make_pipeline(StandardScaler(), LogisticRegression()).fit(pooled(X, bags), labels)
p_baseline = baseline.predict_proba(pooled(X_new, bags_new))[:, 1]
print(
    f"baseline:  AUC {roc_auc_score(labels_new, p_baseline):.3f}, log-loss {log_loss(labels_new, p_baseline):.3f}"
)

# %% [markdown]
# ## Uncertainty
#
# The standard deviation is that of the bag's probability over posterior samples. It is large where the probability
# is near one half, and where the features lie far from the training bags.

# %%
order = np.argsort(p)
plt.figure(figsize=(7, 3))
plt.errorbar(range(len(p)), p[order], std[order], fmt="none", ecolor="lightgrey")
plt.scatter(range(len(p)), p[order], c=labels_new[order], cmap="coolwarm", s=12, zorder=3)
plt.xlabel("bag, sorted")
plt.ylabel("probability")
plt.title("80 new bags: probability ± standard deviation; red: positive")
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Keep it
#
# `head.save("my_head")` writes a safetensors file and a JSON file; `Head.load("my_head")` predicts the same bits.
# Other models of the family and their settings: [the heads](../../heads/).
