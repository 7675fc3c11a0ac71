# %% [markdown]
# # Your hospital's scans with the bundled model
#
# From a folder of DICOM files to probabilities with intervals. The study is the sample of the repository, a real head
# CT of CT-ICH (CC BY 4.0): replace `scans` by your folder. **For research only, not for diagnosis.**

# %%
import json
import subprocess
import tempfile
from pathlib import Path

import pandas as pd

import ich_mil

work = Path(tempfile.mkdtemp())
scans = Path(ich_mil.__file__).parents[1] / "data" / "sample" / "head_ct"


def run(*words):
    """Run a command and print its output."""
    done = subprocess.run([str(word) for word in words], cwd=work, capture_output=True, text=True)
    print(done.stdout + (done.stderr if done.returncode else ""))


# %% [markdown]
# ## Predict
#
# Folders may be nested; the command finds the studies, chooses a series of each, orders its slices and converts them
# to Hounsfield units. Nothing is skipped silently: what was refused, repaired or chosen stands in `ledger.csv`.

# %%
run("ich-mil", "predict", scans, "--out", "predictions")

# %%
table = pd.read_csv(work / "predictions" / "scans.csv")
table[["scan", "probability", "std", "low", "high", "decision"]]

# %%
sorted(path.name for path in (work / "predictions").iterdir())

# %% [markdown]
# `index.html` is the worklist; each study has a page of its own that needs no network
# ([how to read it](../reading_a_page/)). `predictions.json` holds all numbers of the pages:

# %%
first = json.loads((work / "predictions" / "predictions.json").read_text())["scans"][0]
{name: first[name] for name in list(first)[:8]}

# %% [markdown]
# ## Before you rely on it
#
# The bundled model saw few real scans ([model card](../../model_card/)). With labels of your own scans (layout `folder`:
# a `labels.csv` beside the studies) three commands say how it does at your site and adapt it, see
# [at a hospital](../../hospital/):
#
#     ich-mil validate    /path/to/scans --layout folder --model headct-base --out validations/ours
#     ich-mil recalibrate /path/to/scans --layout folder --model headct-base --out checkpoints/ours
#     ich-mil triage      validations/ours
