"""The CNN's training: class weights, the best epoch kept, a killed run goes on as if it never stopped."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import timm
import torch
from pydantic import ValidationError

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Pictures, ScanDataset
from ich_mil.network.frozen import extract_features
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training import fit_cnn as training_fit
from ich_mil.network.training.epoch_log import EpochLog
from ich_mil.network.training.fit_cnn import fit_cnn
from ich_mil.network.training.module import MilModule, class_weights
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.study.window_presets import PRESETS

WINDOWS = PRESETS["papers"]
ENCODER = EncoderSettings(size=32)
CNN = CnnSettings()
# patience above the epochs: training must not stop early, whatever the loss does
TRAINING = TrainingSettings(learning_rate=1e-3, bags=2, max_epochs=4, patience=9)


def fit(prepared, splits, out, **changes):
    settings = {"encoder": ENCODER, "cnn": CNN, "training": TRAINING, "seed": 0} | changes
    return fit_cnn(prepared, splits, out, **settings)


def module_of(model, weights, training=TRAINING):
    pictures = Pictures(WINDOWS, ENCODER.size)
    return MilModule(model, training, weights, pictures=pictures, seed=0)


def validation_loss(model, prepared, splits, training=TRAINING):
    """Mean weighted loss of the validation scans, one by one."""
    labels = splits.label[splits.split == "train"].tolist()
    module = module_of(model, class_weights(labels), training)
    dataset = ScanDataset(prepared, splits.scan[splits.split == "validation"].tolist())
    with torch.no_grad():
        batches = [dataset[i] for i in range(len(dataset))]
        losses = [float(module.loss(module(batch), batch.labels)) for batch in batches]
    return sum(losses) / len(losses)


def predictions(model, prepared):
    features = extract_features(model, prepared, list(prepared.scans.index))
    return features.cnn_scan, features.x


def test_training_leaves_frozen_blocks(prepared, splits, tmp_path):
    """Lightning trains modules in the mode it finds them in: batch norms of frozen blocks must not move."""
    encoder = EncoderSettings(size=32, freeze="all")
    torch.manual_seed(0)
    before = AttentionCnn(encoder, CNN).encoder.state_dict()
    model = fit(prepared, splits, tmp_path, encoder=encoder, training=replace(TRAINING, max_epochs=1))
    after = model.encoder.state_dict()
    moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert moved == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", -1), ("learning_rate", float("nan")), ("schedule", "cosine"), ("bleeds", 0.4)],
)
def test_settings_out_of_range(name, value):
    with pytest.raises(ValidationError, match=name):
        TrainingSettings(**{name: value})


def test_the_loss_by_hand():
    module = module_of(AttentionCnn(ENCODER, CNN), torch.tensor([0.5, 2.0]))
    # mean of 0.5·log 2 and 2·log(1 + e^-1)
    wanted = (0.5 * 0.693147 + 2 * 0.313262) / 2
    loss = module.loss(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_best_epoch_is_kept_and_logged(prepared, splits, tmp_path):
    model = fit(prepared, splits, tmp_path)
    log = pd.read_csv(tmp_path / "log.csv", index_col="epoch")
    assert log.index.tolist() == [0, 1, 2, 3]
    assert not model.training
    assert validation_loss(model, prepared, splits) == pytest.approx(log.val_loss.min(), rel=1e-4)


def log_epoch(path, epoch, loss):
    metrics = {"train_loss": loss, "val_loss": loss + 0.5, "val_auc": 0.75}
    trainer = SimpleNamespace(is_global_zero=True, current_epoch=epoch, callback_metrics=metrics)
    EpochLog(path).on_train_epoch_end(trainer, None)


def test_log_replaces_rows_of_repeated_epochs(tmp_path, capsys):
    for loss, epoch in enumerate((0, 1, 2, 1)):
        log_epoch(tmp_path / "log.csv", epoch, loss)
    rows = ["epoch,train_loss,val_loss,val_auc", "0,0,0.5,0.75", "1,3,3.5,0.75"]
    assert (tmp_path / "log.csv").read_text().split() == rows
    assert capsys.readouterr().out.endswith("epoch   1  train_loss 3  val_loss 3.5  val_auc 0.75\n")
    (tmp_path / "log.csv").write_text("epoch,train_loss,val_loss\n0,3,2\n")
    with pytest.raises(DataError, match=r"log\.csv: is damaged"):
        log_epoch(tmp_path / "log.csv", 1, 0)


@pytest.mark.slow
def test_training_stops_early(prepared, splits, tmp_path):
    # a rate at which the loss soon rises
    patient = replace(TRAINING, learning_rate=0.02, patience=2, max_epochs=20)
    model = fit(prepared, splits, tmp_path, training=patient)
    log = pd.read_csv(tmp_path / "log.csv", index_col="epoch")
    assert len(log) < 20
    assert len(log) == log.val_loss.idxmin() + 1 + 2
    for _ in range(2):  # runs that were killed before the CNN was saved stop there too
        again = fit(prepared, splits, tmp_path, training=patient)
        assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
        assert len(pd.read_csv(tmp_path / "log.csv")) == len(log)


def test_step_too_large_for_the_gpu(prepared, splits, tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore.")

    monkeypatch.setattr(MilModule, "training_step", full)
    with pytest.raises(ConfigError, match=r"GPU's memory \(CUDA out of .* 20.00 GiB.\); lower training.bags"):
        fit(prepared, splits, tmp_path)


@pytest.mark.slow
def test_fixed_epochs_keep_the_last(prepared, splits, tmp_path):
    # a rate at which the loss of the last epoch is not the lowest
    fixed = replace(TRAINING, learning_rate=0.02, patience=None, max_epochs=2)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "best.ckpt").write_bytes(b"of a run that was killed before it wrote last.ckpt")
    model = fit(prepared, splits, tmp_path / "a", training=fixed)
    log = pd.read_csv(tmp_path / "a" / "log.csv", index_col="epoch")
    assert log.index.tolist() == [0, 1]
    assert log.val_loss.idxmin() == 0
    assert validation_loss(model, prepared, splits, fixed) == pytest.approx(log.val_loss.iloc[-1], rel=1e-4)
    fit(prepared, splits, tmp_path / "b", training=replace(fixed, max_epochs=1))
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    before = (tmp_path / "b" / "best.ckpt").read_bytes()
    resumed = predictions(fit(prepared, splits, tmp_path / "c", training=fixed), prepared)
    assert torch.equal(resumed[1], predictions(model, prepared)[1])
    assert (tmp_path / "b" / "best.ckpt").read_bytes() == before, "a copy that goes on leaves the original"
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"best.ckpt", "last.ckpt", "log.csv"}


def test_initial_weights_are_read_once(prepared, splits, tmp_path, monkeypatch):
    weights = tmp_path / "w.pth"
    torch.save(timm.create_model("resnet18").state_dict(), weights)
    run = training_fit._run
    monkeypatch.setattr(training_fit, "_run", lambda *parts: weights.unlink() or run(*parts))
    encoder = EncoderSettings(name="resnet18", size=33, weights=str(weights))
    model = fit(prepared, splits, tmp_path / "out", encoder=encoder, training=replace(TRAINING, max_epochs=1))
    best = torch.load(tmp_path / "out" / "best.ckpt", weights_only=True)["state_dict"]
    name = "encoder.0.1.weight"
    assert torch.equal(model.state_dict()[name], best[f"model.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patience", "message"), [(8, "no epoch had a finite validation loss"), (None, "weights are not finite")]
)
def test_loss_that_is_not_finite(prepared, splits, tmp_path, patience, message):
    training = TrainingSettings(learning_rate=1e30, max_epochs=3, patience=patience)
    with pytest.raises(ModelError, match=rf"{message}; lower training\.learning_rate"):
        fit(prepared, splits, tmp_path, training=training)
    assert (len(pd.read_csv(tmp_path / "log.csv")) == 3) == (patience is None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_trains_resumes_and_extracts_as_a_cpu(prepared, splits, tmp_path):
    training = replace(TRAINING, augment=True, workers=1, max_epochs=2)
    fit(prepared, splits, tmp_path, training=training)
    model = fit(prepared, splits, tmp_path, training=replace(training, max_epochs=3))
    log = pd.read_csv(tmp_path / "log.csv")
    assert log.epoch.tolist() == [0, 1, 2]
    assert log.train_loss.between(0, 10).all()
    assert next(model.parameters()).device.type == "cpu"
    (scan, x), (gpu_scan, gpu_x) = predictions(model, prepared), predictions(model.to("cuda"), prepared)
    torch.testing.assert_close(gpu_scan, scan, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gpu_x, x, rtol=1e-4, atol=1e-5 * float(x.abs().max()))
