# %% [markdown]
# # An own Dataset
#
# The network trains on any PyTorch `Dataset` whose items are a `Batch`: slices in HU, offsets of the bags, labels.
# `collate` joins items to a step, `MilModule` is the Lightning module; nothing else of the program is needed. Here
# noise, with a bright square in every second scan.
#
# This page is the script `docs/tutorials/own_dataset.py`; `make docs` executes it.

# %%
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from ich_mil.gp.head import Head
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.bags import Batch, collate
from ich_mil.network.settings import CnnSettings, EncoderSettings
from ich_mil.network.training.module import MilModule, class_weights
from ich_mil.network.training.settings import TrainingSettings


class OwnScans(Dataset):
    """Scans of six slices, positive if their number is odd."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        hu = (
            torch.randn(6, 64, 64, generator=torch.Generator().manual_seed(i)).mul(10).add(30).short()
        )  # (n, H, W)
        hu[2:4, 20:40, 20:40] += 40 * (i % 2)
        return Batch((hu,), torch.tensor([0, len(hu)]), torch.tensor([i % 2.0]), (f"scan {i}",))


model = AttentionCnn(EncoderSettings(size=32), CnnSettings())
weights = class_weights([i % 2 for i in range(12)])
settings = TrainingSettings(learning_rate=1e-3, max_epochs=3)
module = MilModule(model, settings, weights, pictures=model.pictures(), seed=0)
steps = DataLoader(OwnScans(), batch_size=4, collate_fn=collate)
trainer = pl.Trainer(
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, steps, steps)
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})

# %% [markdown]
# ## Features for a head
#
# A head takes the features of each bag, from this network or from any other Dataset.

# %%
bags, labels = [], []
with torch.no_grad():
    for item in map(OwnScans().__getitem__, range(12)):
        bags.append(model.eval()(module.pictures(item), item.offsets).features)
        labels.append(int(item.labels))
head = Head(n_inducing=8, calibration="none").fit(bags, labels)
print(head.predict_proba(bags)[:4].round(2))
