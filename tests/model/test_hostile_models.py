"""Model folders made to hang, crash or mislead: refused when loaded, in one line, and nothing is run."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from ich_mil.config import RunConfig
from ich_mil.errors import ModelError
from ich_mil.evaluate.baselines import CnnSigmoid
from ich_mil.evaluate.deployment.out_of_distribution import LIKENESS, Likeness
from ich_mil.files import write_json
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.storage import save_head
from ich_mil.model.folder import MODEL_FILES, RUN_FORMAT
from ich_mil.model.storage import load_model, write_ensemble
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import save_cnn
from ich_mil.network.settings import CnnSettings, EncoderSettings
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.sets.splits import SPLIT_COLUMNS, write_splits

pytestmark = pytest.mark.timeout(60)  # a pipe that is opened never ends


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run, untrained, and the ensemble `both` of it alone."""
    folder = tmp_path_factory.mktemp("models") / "run"
    save_cnn(AttentionCnn(EncoderSettings(size=32), CnnSettings()).eval(), folder)
    generator = torch.Generator().manual_seed(0)
    bags = Bags(torch.randn(40, 8, generator=generator), torch.arange(0, 41, 4), torch.arange(10) % 2)
    settings = HeadSettings(n_inducing=4, sweeps=1, variance=0.5, bias=0, lengthscale_squared=8)
    head, _ = fit(bags, settings)
    head.calibration = Calibration("max", 1.5, -0.5)
    config = RunConfig(folder, SetSettings("rsna", "r"))
    about = {
        "format": RUN_FORMAT,
        "cnn": True,
        "table": "",
        "config_hash": config.hash,
        "config": config.as_dict(),
        "trained_on": "nothing",
        "versions": {"torch": "2"},
    }
    write_json(folder / "run.json", about)
    write_splits(
        pd.DataFrame(
            [["s", "p", 0, "train", "all", "c"], ["t", "q", 1, "train", "all", "d"]], columns=SPLIT_COLUMNS
        ),
        folder / "splits.csv",
    )
    CnnSigmoid(1.0, 0.0).save(folder / "cnn_sigmoid.json")
    Likeness(np.zeros(4), np.eye(4), 0.5, 1.0, 0.05).save(folder)
    save_head(head, folder)
    both = folder.with_name("both")
    shutil.copytree(folder, both / "member_0")
    shutil.copy(folder / "splits.csv", both)
    write_json(both / "run.json", about | {"members": ["member_0"]})
    write_ensemble(Calibration("max", 2.0, 0.0), both)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of the run that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def both(whole, tmp_path):
    """A copy of the ensemble."""
    return Path(shutil.copytree(whole.with_name("both"), tmp_path / "both"))


def refused(folder, name):
    """The error of loading, which names the file."""
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(path, field, text):
    """Put JSON text, which may be invalid, in place of a field such as `config.samples`."""
    content = json.loads(path.read_text())
    *outer, last = field.split(".")
    inner = content
    for name in outer:
        inner = inner[name]
    inner[last] = "@"
    path.write_text(json.dumps(content).replace('"@"', text))


def test_the_undamaged_models_load(run, both):
    assert load_model(run).members[0].likeness is not None
    assert load_model(both).calibration.slope == 2


@pytest.mark.parametrize(
    ("name", "field", "text"),
    [
        ("run.json", "config.training.weight_decay", "1e400"),
        ("run.json", "config.training.weight_decay", "NaN"),
        ("run.json", "config.training.weight_decay", "1" + "0" * 400),
        ("run.json", "config.thickness_mm", "4.0"),
        ("run.json", "config.samples", "0"),
        ("run.json", "config.samples", '"many"'),
        ("run.json", "config.samples", "true"),
        ("run.json", "config.bootstrap", "0"),
        ("run.json", "config.seed", str(2**70)),
        ("run.json", "config.seed", str(2**40)),
        ("run.json", "config.head.kernel", "null"),
        ("run.json", "config.train", "[]"),
        ("run.json", "config_hash", "7"),
        ("run.json", "trained_on", "[1]"),
        ("run.json", "more", "1"),
        ("head.json", "jitter", "1e400"),
        ("head.json", "settings.kernel", "null"),
        ("head.json", "settings.kernel", '"LinearKernels"'),
        ("head.json", "settings.seed", str(2**70)),
        ("head.json", "n_draws", "-1"),
        ("head.json", "calibration.rule", '"noisy_or"'),
        ("head.json", "calibration.slope", "NaN"),
        ("head.json", "given", "null"),
        ("cnn.json", "encoder.weights", '"owner/name"'),
        ("cnn.json", "settings.features", "9"),
        ("cnn.json", "settings.dropout", "Infinity"),
        ("cnn.json", "encoder.size", "32.5"),
    ],
)
def test_a_field_that_cannot_be_used_is_refused(run, name, field, text):
    change(run / name, field, text)
    refused(run, name.removesuffix(".json"))  # or the tensors beside it


@pytest.mark.parametrize("name", ["run.json", "cnn.json", "head.json", "ensemble.json"])
@pytest.mark.parametrize("text", ["[" * 10**5 + "]" * 10**5, '{"a":' * 10**5, "1", "9" * 10**5, "\udcff"])
def test_json_that_is_deep_or_no_object_is_refused(run, both, name, text):
    folder = both if name == "ensemble.json" else run
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder, name)


@pytest.mark.parametrize("name", [*MODEL_FILES, "ensemble.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "broken link"])
def test_only_regular_files_are_read(run, both, name, kind):
    folder = both if name == "ensemble.json" else run
    path = folder / name
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("absent")
    refused(folder, f"{path}: ")


def test_a_file_of_more_than_its_limit_is_not_read(run):
    with (run / "run.json").open("wb") as file:
        file.truncate(2**40)  # sparse
    refused(run, "run.json")


@pytest.mark.parametrize("name", ["cnn", "head", "likeness"])
def test_a_tensor_that_is_nan_is_refused(run, name):
    path = run / f"{name}.safetensors"
    key = {"cnn": "aggregator.classifier.weight", "head": "x_mean", "likeness": "precision"}[name]
    state = load_file(path)
    state[key].view(-1)[-1] = torch.nan
    save_file(state, path, {"format": "ich_mil.likeness.2", "threshold": "1", "false_alarms": "0"})
    assert key in refused(run, path.name)


def test_a_threshold_that_no_scan_exceeds_is_refused(run):
    Likeness(np.zeros(4), np.eye(4), 0.5, float("nan"), 0.05).save(run)
    refused(run, LIKENESS)


@pytest.mark.parametrize(("key", "value"), [("x_std", 0.0), ("lower_bound", torch.nan)])
def test_a_scale_or_bound_of_the_head_that_gives_nan_is_refused(run, key, value):
    state = load_file(run / "head.safetensors")
    next(one for name, one in state.items() if name.endswith(key)).fill_(value)
    save_file(state, run / "head.safetensors")
    refused(run, "head.safetensors")


def test_an_ensemble_within_an_ensemble_is_refused(both):
    shutil.rmtree(both / "member_0")
    (both / "member_0").symlink_to(".")
    assert "is an ensemble" in refused(both, "member_0")


@pytest.mark.parametrize("name", [".", "../run", "/absent", "member_0/.."])
def test_members_lie_in_the_folder_of_their_ensemble(run, name):
    change(run / "run.json", "members", json.dumps([name]))
    assert "members.0: String should match" in refused(run, "run.json")


def test_a_head_larger_than_its_file_is_refused_before_it_is_built(run):
    change(run / "head.json", "n_inducing", "100000")
    assert "100000 inducing points" in refused(run, "head.safetensors")


def test_a_joint_calibration_of_another_rule_is_refused(both):
    change(both / "member_0" / "head.json", "calibration", "null")
    assert load_model(both).members[0].calibration is None
    change(both / "ensemble.json", "calibration.rule", '"noisy_or"')
    refused(both, "ensemble.json")


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["cnn.safetensors", "head.safetensors", LIKENESS])
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_in_place_of_tensors_is_refused_and_not_run(run, tmp_path, name, kind):
    with (run / name).open("wb") as file:
        (pickle.dump if kind == "pickle" else torch.save)(Payload(tmp_path / "mark"), file)
    refused(run, name)
    assert not (tmp_path / "mark").exists()


def test_checkpoints_in_the_folder_cnn_are_not_read(run, tmp_path):
    (run / "cnn").mkdir()
    for name in ("last.ckpt", "best.ckpt", "cnn.safetensors"):
        with (run / "cnn" / name).open("wb") as file:
            torch.save(Payload(tmp_path / "mark"), file)
    os.mkfifo(run / "cnn" / "log.csv")
    load_model(run)
    assert not (tmp_path / "mark").exists()
