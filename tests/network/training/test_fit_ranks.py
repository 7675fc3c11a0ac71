"""The CNN on several ranks: a step is the step on all its scans, runs end, killed ones go on."""

import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from ich_mil.errors import ConfigError
from ich_mil.network import attention_cnn, frozen
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Pictures, ScanDataset
from ich_mil.network.frozen import extract_features
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training.fit_cnn import _trainer, fit_cnn
from ich_mil.network.training.module import MilModule
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.ranks import Ranks
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import draw_splits
from ich_mil.sets.store import open_prepared
from tests.together import together

ENCODER = EncoderSettings(size=32)
CNN = CnnSettings()
TRAINING = TrainingSettings(learning_rate=1e-3, bags=3, max_epochs=2, patience=None)
VARIED = replace(TRAINING, augment=True)


@pytest.fixture(scope="module")
def splits(prepared):
    """Odd numbers of scans: ranks never have the same."""
    drawn = draw_splits(prepared.scans, validation=0.4, test=0.0, seed=0)
    assert drawn.split.value_counts().to_dict() == {"train": 7, "validation": 5}
    return drawn


def descend(module):
    """Gradient descent: a step of Adam hides the size of a gradient, and follows rounding where it is 0."""
    return torch.optim.SGD([value for value in module.parameters() if value.requires_grad], lr=0.05)


def fit(folder, splits, out, training=TRAINING, dropout=0.0, chunk=256):
    """Train and extract, all in float64; masks of dropout differ between ranks, so a comparison has none.

    In float32 one process has torch's own batch norm of these few values, and its means are off by 1e-4 to
    3e-3 (`ich_mil.network.shared_norm`): two ranks are then nearer to the truth than one.
    """
    prepared = open_prepared(folder)
    before = torch.get_default_dtype()
    exact = Pictures.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_cnn, "DROPOUT", dropout)
        patch.setattr(attention_cnn, "CHUNK_SLICES", chunk)
        patch.setattr(MilModule, "configure_optimizers", descend)
        patch.setattr(Pictures, "__call__", lambda self, batch: exact(self, batch).double())
        torch.set_default_dtype(torch.float64)
        try:
            model = fit_cnn(prepared, splits, out, encoder=ENCODER, cnn=CNN, training=training, seed=0)
            scans = list(prepared.scans.index)
            features = extract_features(model, prepared, scans)
        finally:
            torch.set_default_dtype(before)
    return model.state_dict(), vars(features)


def apart(one, other):
    """Largest difference of two states, each tensor relative to its largest value."""
    return max(
        float((one[name] - value).abs().max() / value.abs().max())
        for name, value in other.items()
        if value.is_floating_point()
    )


def same_on_both(found):
    """Whether two ranks ended with the same weights and the same features of all scans, to the bit."""
    (state, features), (other_state, other_features) = found
    pairs = [(state[name], other_state[name]) for name in state]
    pairs += [(features[name], other_features[name]) for name in features]
    return all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in pairs)


def check_two_against_one(prepared, splits, tmp_path, training):
    alone, features = fit(prepared.folder, splits, tmp_path / "alone", training)
    (tmp_path / "meet").mkdir()
    found = together(fit, prepared.folder, splits, tmp_path / "both", training, folder=tmp_path / "meet")
    assert same_on_both(found)
    (state, extracted), _ = found
    # sums in another order, through 6 steps
    assert apart(state, alone) < 1e-9
    assert extracted["scans"] == features["scans"]
    torch.testing.assert_close(extracted["x"], features["x"], rtol=1e-9, atol=1e-9)
    logs = [pd.read_csv(tmp_path / name / "log.csv") for name in ("alone", "both")]
    assert logs[0].epoch.tolist() == logs[1].epoch.tolist() == list(range(training.max_epochs))
    for name in ("train_loss", "val_loss", "val_auc"):
        assert logs[1][name].tolist() == pytest.approx(logs[0][name].tolist(), rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("training", [TRAINING, VARIED], ids=["plain", "varied"])
def test_two_ranks_train_as_one(prepared, splits, tmp_path, training):
    check_two_against_one(prepared, splits, tmp_path, training)


@pytest.mark.slow
@pytest.mark.realdata
def test_two_ranks_train_as_one_on_real_pictures(shared_data, tmp_path):
    tool, patients = shared_data.parent / "tools" / "ctich_to_dicom.py", "50,52,54,58,59,62,64"
    written = [shared_data / "ctich", tmp_path / "set", "--layout", "rsna", "--patients", patients]
    subprocess.run([sys.executable, tool, *written], check=True)
    prepared = prepare("rsna", tmp_path / "set", tmp_path / "prepared", jobs=1)
    splits = draw_splits(prepared.scans, validation=0.3, test=0.0, seed=0)
    check_two_against_one(prepared, splits, tmp_path, replace(VARIED, max_epochs=1))


@pytest.mark.slow
def test_ranks_of_unequal_load_end(prepared, splits, tmp_path):
    # batch norm waits for the others in every chunk, and ranks have different numbers of slices
    many = replace(TRAINING, bags=5, max_epochs=1, augment=True)
    found = together(fit, prepared.folder, splits, tmp_path / "both", many, 0.3, 4, folder=tmp_path)
    assert same_on_both(found)


def even(loads, scans):
    """Whether two ranks have about as many slices, of scans that in turn would be 36 apart."""
    assert sum(loads) == int(scans.sizes.sum())
    return abs(loads[0] - loads[1]) < int(scans.sizes.min())


def bars(prepared, scans):
    """How many bars one rank draws, and how many slices it feeds to the CNN."""
    drawn, fed = [], []
    model = AttentionCnn(ENCODER, CNN).eval()
    classify = model.classify
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            model,
            "classify",
            lambda maps, *words, **more: fed.append(len(maps)) or classify(maps, *words, **more),
        )
        patch.setattr(frozen, "progress", lambda items, **_: drawn.append(1) or items)
        extract_features(model, prepared, scans)
    return len(drawn), sum(fed)


def test_ranks_share_the_slices_evenly(prepared, tmp_path):
    scans = list(prepared.scans.index)
    drawn, fed = zip(*together(bars, prepared, scans, folder=tmp_path), strict=True)
    assert drawn == (1, 0)
    assert even(fed, ScanDataset(prepared, scans))


def test_trainer_knows_machines_and_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)  # set by the trainer, for all later loggers
    started = {"RANK": 3, "WORLD_SIZE": 6, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1}
    for name, value in {**started, "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, str(value))
    trainer, _ = _trainer(tmp_path, TRAINING, Ranks(3, 6), None)
    assert (trainer.num_devices, trainer.num_nodes, trainer.world_size) == (2, 3, 6)


def too_many(folder, splits, out):
    watched = splits.index[splits.split == "validation"]
    messages = []
    for drawn, training in ((splits, replace(TRAINING, bags=1)), (splits.drop(watched[1:]), TRAINING)):
        with pytest.raises(ConfigError) as caught:
            fit(folder, drawn, out, training)
        messages.append(str(caught.value))
    return messages


def test_more_ranks_than_scans(prepared, splits, tmp_path):
    for step, watched in together(too_many, prepared.folder, splits, tmp_path / "out", folder=tmp_path):
        assert "leave 1 for some of them, which cannot be shared among 2 processes" in step
        assert "raise training.bags" in step
        assert watched == "1 validation scans cannot be shared among 2 processes; start fewer"
