"""The CNN's training: class weights, the best epoch kept, a killed run goes on as if it never stopped."""

import copy
import errno
import os
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision.models import squeezenet1_1

from ich_mil.data.bags import Pictures, ScanDataset
from ich_mil.data.splits import draw_splits
from ich_mil.encoders import frozen
from ich_mil.encoders.attention_cnn import AttentionCnn, BagOutput, CnnSettings
from ich_mil.encoders.frozen import extract_features, load_cnn, save_cnn, stored_features
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.ranks import Ranks
from ich_mil.training import fit_cnn as training_fit
from ich_mil.training import warmup
from ich_mil.training.augment import VariedScans
from ich_mil.training.fit_cnn import LOGGED, EpochLog, fit_cnn
from ich_mil.training.module import MilModule, class_weights
from ich_mil.training.settings import TrainingSettings
from ich_mil.window_presets import PRESETS
from tests.together import forkserver

WINDOWS = PRESETS["papers"]
ENCODER = EncoderSettings(size=32)
CNN = CnnSettings()
# patience above the epochs: training must not stop early, whatever the loss does
TRAINING = TrainingSettings(learning_rate=1e-3, bags=2, max_epochs=4, patience=9)


@pytest.fixture(scope="module")
def splits(prepared):
    return draw_splits(prepared.scans, validation=0.3, test=0.0, seed=0)


def fit(prepared, splits, out, **changes):
    settings = {"encoder": ENCODER, "cnn": CNN, "training": TRAINING, "seed": 0} | changes
    return fit_cnn(prepared, splits, out, **settings)


def module_of(model, weights, training=TRAINING):
    pictures = Pictures(WINDOWS, ENCODER.size)
    return MilModule(model, training, weights, watched=weights, pictures=pictures, seed=0)


def validation_loss(model, prepared, splits, training=TRAINING):
    """Mean weighted loss of the validation scans, one by one; they get no bleeds."""
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


def test_features_are_extracted_with_all_bits_of_float32(prepared, monkeypatch):
    cudnn, seen = torch.backends.cudnn, []
    model = AttentionCnn(ENCODER, CNN).eval()
    encode = model.encode_maps
    monkeypatch.setattr(
        model,
        "encode_maps",
        lambda maps, **blocks: seen.append((cudnn.enabled, cudnn.allow_tf32)) or encode(maps, **blocks),
    )
    predictions(model, prepared)
    assert set(seen) == {(True, False)}
    assert cudnn.allow_tf32, "not put back"


def test_training_leaves_frozen_blocks_as_they_were(prepared, splits, tmp_path):
    """Lightning trains modules in the mode it finds them in: batch norms of frozen blocks must not move."""
    encoder = EncoderSettings(size=32, freeze="all")
    torch.manual_seed(0)
    before = AttentionCnn(encoder, CNN).encoder.state_dict()
    model = fit(prepared, splits, tmp_path, encoder=encoder, training=replace(TRAINING, max_epochs=1))
    after = model.encoder.state_dict()
    moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert moved == []


def test_class_weights_count_scans_as_they_will_be_with_bleeds():
    assert class_weights([0, 0, 0, 1]).tolist() == pytest.approx([4 / 6, 2.0])
    # of 4 negative scans 1 becomes positive: 3 and 3
    assert class_weights([0, 0, 0, 0, 1, 1], bleeds=0.25).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bleeds": 1.0}, "bleeds"),
        ({"bleeds": 0.6, "controls": 0.5}, r"training\.controls, got 0\.6 and 0\.5"),
        ({"controls": -0.1}, r"training\.controls .*-0\.1"),
        ({"bleeds": float("nan")}, r"training\.bleeds .*nan"),
        ({"workers": -1}, r"training\.workers .*-1"),
        ({"bags": 0}, r"training\.bags .*0"),
        ({"learning_rate": float("nan")}, r"training\.learning_rate .*nan"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    TrainingSettings(bleeds=0.25, controls=0.75)
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**change)


def test_the_loss_by_hand():
    module = module_of(AttentionCnn(ENCODER, CNN), torch.tensor([0.5, 2.0]))
    output = BagOutput(torch.tensor([0.0, 1.0]), torch.zeros(0), torch.zeros(0), torch.zeros(0))
    # mean of 0.5·log 2 and 2·log(1 + e^-1)
    wanted = (0.5 * 0.693147 + 2 * 0.313262) / 2
    assert float(module.loss(output, torch.tensor([0.0, 1.0]))) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_the_best_epoch_is_kept_and_logged(prepared, splits, tmp_path):
    training = replace(TRAINING, bleeds=0.5)
    model = fit(prepared, splits, tmp_path, training=training)
    log = pd.read_csv(tmp_path / "log.csv", index_col="epoch")
    assert log.index.tolist() == [0, 1, 2, 3]
    assert not model.training
    loss = validation_loss(model, prepared, splits, training)
    assert loss == pytest.approx(log.val_loss.min(), rel=1e-4)


@pytest.mark.slow
def test_scans_vary_and_follow_each_other_as_settings_and_seed_say(prepared, splits, tmp_path, monkeypatch):
    get, asked = VariedScans.__getitem__, []
    step, stepped = MilModule.training_step, []
    make, kept = Pictures.__init__, []

    def note(self, key):
        asked.append((key, self.seed, self.augmented, self.bleeds, self.controls))
        return get(self, key)

    def note_step(self, *batch):
        stepped.append(self.seed)
        return step(self, *batch)

    def note_kept(self, *words, slices, neighbours):
        kept.append(slices)
        make(self, *words, slices=slices, neighbours=neighbours)

    monkeypatch.setattr(VariedScans, "__getitem__", note)
    monkeypatch.setattr(MilModule, "training_step", note_step)
    monkeypatch.setattr(Pictures, "__init__", note_kept)
    busy = replace(TRAINING, augment=True, bleeds=0.4, controls=0.3, max_epochs=1)
    orders = []
    for seed in (0, 5):
        (tmp_path / f"{seed}").mkdir()
        (tmp_path / f"{seed}" / ".best.ckpt.1.tmp").touch()  # left by one that was killed
        fit(prepared, splits, tmp_path / f"{seed}", training=busy, seed=seed)
        assert not list((tmp_path / f"{seed}").glob(".*"))
        keys, *how = zip(*asked, strict=True)
        assert [set(values) for values in how] == [{seed}, {True}, {0.4}, {0.3}]
        assert set(stepped) == {seed}
        assert kept.pop() == prepared.scans.slices.sum()  # of training and validation
        stepped.clear()
        orders.append(keys)
        asked.clear()
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


@pytest.mark.slow
def test_training_stops_where_the_loss_has_not_fallen_for_so_many_epochs(prepared, splits, tmp_path):
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


@pytest.mark.slow
def test_fewer_steps_than_asked_for_at_the_end_of_an_epoch_are_averaged_too(
    prepared, splits, tmp_path, monkeypatch
):
    # a step of Adam hides the size of a gradient
    monkeypatch.setattr(
        MilModule, "configure_optimizers", lambda module: torch.optim.SGD(module.parameters(), lr=0.01)
    )
    steps = -(-int((splits.split == "train").sum()) // TRAINING.bags)
    torch.manual_seed(0)
    before = AttentionCnn(ENCODER, CNN).attention_w.weight
    moved = []
    for accumulate in (steps, 10 * steps):
        training = replace(TRAINING, accumulate=accumulate, max_epochs=1)
        model = fit(prepared, splits, tmp_path / f"{accumulate}", training=training)
        checkpoint = torch.load(tmp_path / f"{accumulate}" / "last.ckpt", weights_only=True)
        assert checkpoint["global_step"] == 1
        moved.append((model.attention_w.weight - before).detach())
    assert moved[0].abs().max() > 0
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-3, atol=1e-3 * float(moved[0].abs().max()))


def test_an_epoch_that_is_done_again_takes_the_place_of_its_row_and_of_later_ones(tmp_path, capsys):
    log = EpochLog(tmp_path / "log.csv")
    for loss, epoch in enumerate((0, 1, 2, 1)):
        metrics = {"train_loss": loss, "val_loss": loss + 0.5, "val_auc": 0.75}
        trainer = SimpleNamespace(is_global_zero=True, current_epoch=epoch, callback_metrics=metrics)
        log.on_train_epoch_end(trainer, None)
    rows = ["epoch,train_loss,val_loss,val_auc", "0,0,0.5,0.75", "1,3,3.5,0.75"]
    assert (tmp_path / "log.csv").read_text().split() == rows
    assert capsys.readouterr().out.endswith("epoch   1  train_loss 3  val_loss 3.5  val_auc 0.75\n")


def test_ranks_beside_the_first_write_no_log_and_leave_the_folder_to_it(
    prepared, splits, tmp_path, monkeypatch, capsys
):
    EpochLog(tmp_path / "log.csv").on_train_epoch_end(SimpleNamespace(is_global_zero=False), None)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Ranks, "first", False)
    with pytest.raises(ConfigError, match="0 validation scans cannot be shared"):
        fit(prepared, splits[splits.split == "train"], tmp_path / "out")
    assert not list(tmp_path.iterdir())
    temporary = tmp_path / ".last.ckpt.1.tmp"
    temporary.touch()
    with pytest.raises(ConfigError, match="0 validation scans cannot be shared"):
        fit(prepared, splits[splits.split == "train"], tmp_path)
    assert temporary.exists()


def _fit_until(epoch, number, *about):
    """Train, and send this process a signal at the end of an epoch."""
    at_end = EpochLog.on_train_epoch_end

    def bomb(self, trainer, pl_module):
        at_end(self, trainer, pl_module)
        if trainer.current_epoch == epoch:
            os.kill(os.getpid(), number)

    EpochLog.on_train_epoch_end = bomb
    torch.set_num_threads(1)
    fit(*about)


def killed(*about, epoch, number):
    """The exit code of a run that is sent a signal at the end of an epoch."""
    process = forkserver().Process(target=_fit_until, args=(epoch, number, *about))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_a_killed_and_resumed_run_gives_the_same_predictions(prepared, splits, tmp_path):
    assert killed(prepared, splits, tmp_path / "a", epoch=2, number=signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / "a" / "last.ckpt").is_file()
    assert not (tmp_path / "a" / "cnn.json").exists()

    resumed = predictions(fit(prepared, splits, tmp_path / "a"), prepared)
    straight = predictions(fit(prepared, splits, tmp_path / "b"), prepared)
    assert torch.equal(resumed[0], straight[0])
    assert torch.equal(resumed[1], straight[1])
    logs = [pd.read_csv(tmp_path / name / "log.csv") for name in "ab"]
    assert logs[0].equals(logs[1])


@pytest.mark.slow
def test_a_run_that_is_told_to_end_ends(prepared, splits, tmp_path):
    assert killed(prepared, splits, tmp_path / "a", epoch=0, number=signal.SIGTERM) == -signal.SIGTERM
    assert len(pd.read_csv(tmp_path / "a" / "log.csv")) == 1


@pytest.mark.slow
def test_what_was_to_be_done_when_told_to_end_is_done_in_training_too(prepared, splits, tmp_path):
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("end"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EpochLog, "on_train_epoch_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            fit(prepared, splits, tmp_path, training=replace(TRAINING, max_epochs=2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["end"] * 2


@pytest.mark.slow
def test_one_task_of_several_that_slurm_has_started_trains_alone(prepared, splits, tmp_path, monkeypatch):
    for name, value in {"NTASKS": 2, "JOB_ID": 1, "JOB_NAME": "job", "PROCID": 0, "LOCALID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    fit(prepared, splits, tmp_path, training=replace(TRAINING, max_epochs=1))
    assert len(pd.read_csv(tmp_path / "log.csv")) == 1


@pytest.mark.slow
def test_a_run_that_varies_goes_on_as_if_it_never_stopped(prepared, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "DRAWS", 1)
    monkeypatch.setattr(warmup, "SLICES", 8)
    varied = replace(TRAINING, augment=True, bleeds=0.4, controls=0.3, warmup_steps=2, max_epochs=3)
    fit(prepared, splits, tmp_path / "before", training=replace(varied, max_epochs=1))
    (tmp_path / "before").rename(tmp_path / "a")
    with monkeypatch.context() as again:
        again.setattr("ich_mil.training.fit_cnn.warm_up", lambda *_, **__: pytest.fail("a second warm-up"))
        resumed = predictions(fit(prepared, splits, tmp_path / "a", training=varied), prepared)
    straight = predictions(fit(prepared, splits, tmp_path / "b", training=varied), prepared)
    assert torch.equal(resumed[1], straight[1])
    assert (tmp_path / "a" / "log.csv").read_text() == (tmp_path / "b" / "log.csv").read_text()
    # the same weights, order and dropout, but other pictures
    fit(prepared, splits, tmp_path / "c", training=replace(varied, augment=False))
    assert (tmp_path / "c" / "log.csv").read_text() != (tmp_path / "b" / "log.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_every_epoch_asks_for_its_own_steps_also_after_a_stop(
    prepared, splits, tmp_path, monkeypatch, workers
):
    get = VariedScans.__getitem__

    def note(self, key):
        with (tmp_path / "asked").open("a") as file:  # by any process
            file.write(f"{key[0]} {key[1]}\n")
        return get(self, key)

    monkeypatch.setattr(VariedScans, "__getitem__", note)
    busy = replace(TRAINING, workers=workers, max_epochs=2)
    fit(prepared, splits, tmp_path / "out", training=busy)
    fit(prepared, splits, tmp_path / "out", training=replace(busy, max_epochs=4))
    asked = [tuple(map(int, line.split())) for line in (tmp_path / "asked").read_text().splitlines()]
    size = int((splits.split == "train").sum())
    orders = [[place for epoch, place in asked if epoch == wanted] for wanted in range(4)]
    assert len(asked) == sum(map(len, orders))
    assert [sorted(order[:size]) for order in orders] == [list(range(size))] * 4
    assert len({tuple(order[:size]) for order in orders}) == 4
    # it goes on from the best epoch, so those after it are asked for again
    assert all(order == order[:size] * (len(order) // size) for order in orders)
    assert [len(order) // size for order in orders][::3] == [1, 1]


@pytest.mark.slow
def test_a_disk_that_fills_leaves_the_last_whole_checkpoint(prepared, splits, tmp_path, monkeypatch):
    fixed = replace(TRAINING, fixed_epochs=True)
    straight = predictions(fit(prepared, splits, tmp_path / "a", training=fixed), prepared)
    save, calls, limits = torch.save, iter(range(100)), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(state, file):
        if next(calls) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        return save(state, file)

    try:
        with monkeypatch.context() as full:
            full.setattr(torch, "save", fill)
            with pytest.raises(DataError, match=r"last\.ckpt: cannot be written \(File too large\)"):
                fit(prepared, splits, tmp_path / "b", training=fixed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["best.ckpt", "last.ckpt", "log.csv"]
    # nor is it written anywhere else first
    monkeypatch.setattr(tempfile, "mkstemp", lambda *_, **__: pytest.fail("a file elsewhere"))
    resumed = predictions(fit(prepared, splits, tmp_path / "b", training=fixed), prepared)
    assert torch.equal(resumed[1], straight[1])


@pytest.mark.parametrize(
    "step", [(AttentionCnn, "encode"), (MilModule, "training_step")], ids=["warm-up", "training"]
)
def test_a_step_too_large_for_the_gpu_is_told(prepared, splits, tmp_path, monkeypatch, step):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore is told.")

    monkeypatch.setattr(*step, full)
    warms_up = step[0] is AttentionCnn
    monkeypatch.setattr(warmup, "drawn_slices", lambda *_: [[torch.zeros(1, 3, 32, 32)]] * 3)
    with pytest.raises(ConfigError, match=r"GPU's memory \(CUDA out of .* 20.00 GiB.\); lower training.bags"):
        fit(prepared, splits, tmp_path, training=replace(TRAINING, warmup_steps=int(warms_up)))


def test_ctrl_c_is_a_keyboard_interrupt_and_so_is_the_next(prepared, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(ScanDataset, "__getitem__", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(prepared, splits, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_exit_that_somebody_else_asks_for_is_left_alone(prepared, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(ScanDataset, "__getitem__", lambda *_: sys.exit(3))
    with pytest.raises(SystemExit) as caught:
        fit(prepared, splits, tmp_path)
    assert caught.value.code == 3


@pytest.mark.slow
def test_with_fixed_epochs_the_last_is_kept_and_a_run_goes_on_from_it(prepared, splits, tmp_path):
    # a rate at which the loss of the last epoch is not the lowest
    fixed = replace(TRAINING, learning_rate=0.02, fixed_epochs=True, patience=1, max_epochs=2)
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


@pytest.mark.slow
def test_after_a_warm_up_scans_train_attention_and_classifier_alone(prepared, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "DRAWS", 1)
    monkeypatch.setattr(warmup, "SLICES", 8)
    warmed = replace(TRAINING, warmup_steps=2, fixed_epochs=True)
    states = [
        fit(prepared, splits, tmp_path / name, training=replace(warmed, max_epochs=epochs)).state_dict()
        for name, epochs in (("a", 1), ("b", 3))
    ]
    moved = {name for name in states[0] if not torch.equal(states[0][name], states[1][name])}
    assert moved
    assert all(name.startswith(("attention", "classifier")) for name in moved)


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused(prepared, splits, tmp_path):
    fit(prepared, splits, tmp_path, training=TrainingSettings(max_epochs=1, bags=4))
    with pytest.raises(ModelError, match=r"last\.ckpt: belongs to another model"):
        fit(prepared, splits, tmp_path, cnn=CnnSettings(features=32))


@pytest.fixture(scope="module")
def one_epoch(prepared, splits, tmp_path_factory):
    out = tmp_path_factory.mktemp("one_epoch")
    fit(prepared, splits, out, training=TrainingSettings(max_epochs=1, bags=4))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
@pytest.mark.parametrize("content", ["nothing", "zip", "tensors"])
def test_a_damaged_checkpoint_is_named(prepared, splits, one_epoch, tmp_path, name, content):
    out = tmp_path / "cnn"
    shutil.copytree(one_epoch, out)
    path = out / name
    match content:
        case "nothing":
            path.write_bytes(b"")
        case "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("a", "b")
        case "tensors":
            torch.save({"state_dict": {}}, path)
    with pytest.raises(ModelError, match=rf"{name}: cannot be read .* delete {out}"):
        fit(prepared, splits, out, training=TrainingSettings(max_epochs=1, bags=4))


@pytest.mark.slow
def test_a_damaged_log_is_named(prepared, splits, one_epoch, tmp_path):
    out = tmp_path / "cnn"
    shutil.copytree(one_epoch, out)
    (out / "log.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"log\.csv: is damaged"):
        fit(prepared, splits, out, training=TrainingSettings(max_epochs=2, bags=4))


def log_epoch(path, epoch):
    told = {name: torch.tensor(0.25) for name in LOGGED}
    trainer = SimpleNamespace(is_global_zero=True, current_epoch=epoch, callback_metrics=told)
    EpochLog(path).on_train_epoch_end(trainer, None)


def test_the_log_of_another_version_goes_on(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,train_loss,seconds,val_loss,val_auc\n0,3,9,2,1\n1,6,9,5,4\n")
    log_epoch(path, 1)
    wanted = ["epoch,train_loss,val_loss,val_auc", "0,3,2,1", "1,0.25,0.25,0.25"]
    assert path.read_text().splitlines() == wanted
    for damaged in ("epoch,train_loss,val_loss\n0,3,2\n", "a,b\n1,2\n", "epoch\nnone\n"):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"log\.csv: is damaged"):
            log_epoch(path, 1)


def test_a_saved_cnn_predicts_bit_identically(prepared, tmp_path):
    torch.manual_seed(1)
    model = AttentionCnn(ENCODER, CNN).eval()
    save_cnn(model, str(tmp_path))
    loaded = load_cnn(str(tmp_path))
    assert (loaded.settings, loaded.encoder_settings) == (CNN, ENCODER)
    assert torch.equal(predictions(loaded, prepared)[1], predictions(model, prepared)[1])


def test_a_cnn_is_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(_, path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr(frozen, "save_file", full)
    with pytest.raises(DataError, match=r"cnn\.safetensors: the disk is full"):
        save_cnn(AttentionCnn(ENCODER, CNN), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ich_mil.cnn.2"', '"ich_mil.cnn.0"', "another version"),
        ('"features": 8', '"features": 32', "does not hold"),
        ('"channels"', '"doors"', "cannot be read"),
        ('"encoder"', '"spine"', "cannot be read"),
        ('"settings"', "settings", "cannot be read"),
    ],
)
def test_a_cnn_of_another_version_or_width_is_refused(tmp_path, old, new, message):
    save_cnn(AttentionCnn(ENCODER, CNN), tmp_path)
    path = tmp_path / "cnn.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ModelError, match=message) as caught:
        load_cnn(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("cnn.json", None), ("cnn.json", b"[]"), ("cnn.safetensors", None), ("cnn.safetensors", b"half")],
)
def test_a_cnn_of_which_a_file_is_gone_or_damaged_is_refused(tmp_path, name, content):
    save_cnn(AttentionCnn(ENCODER, CNN), tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_cnn(tmp_path)


def test_features_of_a_scan_do_not_depend_on_the_others(prepared):
    torch.manual_seed(1)
    model = AttentionCnn(ENCODER, CNN).eval()
    scans = list(prepared.scans.index)
    every = extract_features(model, prepared, scans)
    alone = extract_features(model, prepared, scans[3:4])
    assert torch.equal(every.select(scans[3:4]).x, alone.x)
    assert alone.slice_names == prepared.slices(scans[3]).sop.tolist()
    expected = torch.tensor(prepared.slices(scans[3]).slice_label.tolist())
    assert torch.equal(alone.slice_labels, expected)
    with pytest.raises(ValueError, match=r"call its eval\(\)"):  # dropout would draw, batch norm move
        extract_features(model.train(), prepared, scans[3:4])


def test_features_come_with_all_that_is_known_of_their_scans(prepared):
    torch.manual_seed(1)
    model = AttentionCnn(ENCODER, CNN).eval()
    scans = list(prepared.scans.index)[5:2:-1]
    got = extract_features(model, prepared, scans)
    about, rows = prepared.scans.loc[scans], pd.concat([prepared.slices(scan) for scan in scans])
    assert (got.scans, got.patients, got.labels.tolist()) == (scans, list(about.patient), list(about.label))
    assert got.offsets.diff().tolist() == list(about.slices)
    assert torch.equal(got.positions, torch.tensor(list(rows.position), dtype=torch.float32))
    assert got.positions_mm.tolist() == list(rows.position_mm)
    dataset, pictures = ScanDataset(prepared, scans), Pictures(WINDOWS, 32)
    said = [model(pictures(dataset[b]), dataset[b].offsets) for b in range(3)]
    scan, each, attention, x = (torch.cat(parts).detach() for parts in zip(*said, strict=True))
    wanted = {"cnn_scan": scan.sigmoid(), "cnn_slice": each.sigmoid(), "attention": attention, "x": x}
    for name, values in wanted.items():
        np.testing.assert_array_equal(getattr(got, name).numpy(), values.numpy(), name)


def test_stored_features_are_made_again_where_anything_they_depend_on_differs(
    prepared, tmp_path, monkeypatch
):
    scans = list(prepared.scans.index)[:1]
    model = AttentionCnn(ENCODER, CNN).eval()
    states = {name: copy.deepcopy(model) for name in ("project.bias", "encoder.1.2.running_mean")}
    for name, cnn in states.items():
        cnn.state_dict()[name].add_(1)
    path = tmp_path / "features.safetensors"
    first = stored_features(path, model, prepared, scans)
    made = []
    monkeypatch.setattr(frozen, "extract_features", lambda *words, **_: made.append(words) or first)
    assert torch.equal(stored_features(path, model, prepared, scans).x, first.x)
    assert made == []
    levels = [[level + 1, width] for level, width in WINDOWS]
    for name, changed in (("channels", levels), ("size", 64), ("crop", True)):
        states[name] = copy.deepcopy(model)
        states[name].encoder_settings = replace(ENCODER, **{name: changed})
    for cnn, pictures, of in (
        *((cnn, prepared, scans) for cnn in states.values()),
        (model, replace(prepared, fingerprint="of other pixels"), scans),
        (model, prepared, list(prepared.scans.index)[1:2]),
    ):
        stored_features(path, model, prepared, scans)
        made.clear()
        for _ in range(2):  # the second time they are there
            stored_features(path, cnn, pictures, of)
        assert len(made) == 1
    made.clear()
    stored_features(path, model, prepared, scans)
    monkeypatch.setattr(frozen, "EXTRACTION", frozen.EXTRACTION + 1)
    stored_features(path, model, prepared, scans)
    assert len(made) == 2


def test_initial_weights_are_needed_no_more_once_training_has_begun(prepared, splits, tmp_path, monkeypatch):
    weights = tmp_path / "w.pth"
    torch.save(squeezenet1_1(weights=None).state_dict(), weights)
    run = training_fit._run
    monkeypatch.setattr(training_fit, "_run", lambda *parts: weights.unlink() or run(*parts))
    encoder = EncoderSettings(name="squeezenet1_1", size=32, weights=str(weights))
    model = fit(prepared, splits, tmp_path / "out", encoder=encoder, training=replace(TRAINING, max_epochs=1))
    best = torch.load(tmp_path / "out" / "best.ckpt", weights_only=True)["state_dict"]
    name = "encoder.0.1.weight"
    assert torch.equal(model.state_dict()[name], best[f"model.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixed", "message"), [(False, "no epoch had a finite validation loss"), (True, "weights are not finite")]
)
def test_a_loss_that_is_not_finite_is_told(prepared, splits, tmp_path, fixed, message):
    training = TrainingSettings(learning_rate=1e30, max_epochs=3, fixed_epochs=fixed)
    with pytest.raises(ModelError, match=rf"{message}; lower training\.learning_rate"):
        fit(prepared, splits, tmp_path, training=training)
    assert (len(pd.read_csv(tmp_path / "log.csv")) == 3) == fixed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_goes_on_and_finds_the_features_of_a_cpu(prepared, splits, tmp_path):
    training = replace(
        TRAINING, augment=True, bleeds=0.3, controls=0.3, warmup_steps=3, workers=1, max_epochs=2
    )
    fit(prepared, splits, tmp_path, training=training)
    model = fit(prepared, splits, tmp_path, training=replace(training, max_epochs=3))
    log = pd.read_csv(tmp_path / "log.csv")
    assert log.epoch.tolist() == [0, 1, 2]
    assert log.train_loss.between(0, 10).all()
    assert next(model.parameters()).device.type == "cpu"
    (scan, x), (gpu_scan, gpu_x) = predictions(model, prepared), predictions(model.to("cuda"), prepared)
    torch.testing.assert_close(gpu_scan, scan, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gpu_x, x, rtol=1e-4, atol=1e-5 * float(x.abs().max()))
