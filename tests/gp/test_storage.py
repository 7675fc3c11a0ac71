"""A head on disk: the same to the bit, and every kind of wrong file named with its remedy."""

import json

import pytest
import torch
from synthetic import scans

from ich_mil.errors import ModelError
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.storage import load_head, save_head


@pytest.fixture
def saved(tmp_path):
    head, _ = fit(*scans(), settings=HeadSettings(n_inducing=8, sweeps=4, lengthscale_squared=2.3, seed=5))
    head.calibration = Calibration("max", "platt", 0.123456789012345, -0.3, slice_intercept=1 / 3)
    save_head(head, tmp_path / "run" / "head")
    return head, tmp_path / "run" / "head"


def test_a_reloaded_head_predicts_the_same_bits(saved):
    head, folder = saved
    again = load_head(folder, n_features=3)
    assert again.settings == head.settings
    assert again.calibration == head.calibration
    assert not again.training
    x, offsets, _ = scans(5, seed=2)
    ids = list("abcde")
    one, two = (predict(m, x, offsets, ids, samples=20, calibration=m.calibration) for m in (head, again))
    for name in ("slice_mean", "slice_std", "scan_mean", "scan_std", "scan_low", "scan_high"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert torch.equal(head(x).mean, again(x).mean)
    assert torch.equal(head(x).variance, again(x).variance)
    assert sorted(p.name for p in folder.iterdir()) == ["head.json", "head.safetensors"]


def edit(folder, **changes):
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_wrong_files_are_named_with_reason_and_remedy(saved):
    _, folder = saved
    with pytest.raises(
        ModelError, match=r"head\.json: the head was trained on 3 features a slice, these have 8; use"
    ):
        load_head(folder, n_features=8)
    edit(folder, format="ich_mil.head.0")
    with pytest.raises(
        ModelError, match=r"head\.json: is of format 'ich_mil.head.0', .* train the head again"
    ):
        load_head(folder)
    edit(folder, format="ich_mil.head.2", n_features=4)
    with pytest.raises(ModelError, match=r"head\.safetensors: does not hold the head that head\.json"):
        load_head(folder)
    edit(folder, n_features=3, settings={"alpha": -1.0})
    with pytest.raises(ModelError, match=r"head\.json: is not the description of a head \(alpha must be"):
        load_head(folder)
    edit(folder, settings={"unknown": 1})
    with pytest.raises(ModelError, match="unknown"):
        load_head(folder)
    (folder / "head.json").write_text("{")
    with pytest.raises(ModelError, match=r"head\.json: cannot be read"):
        load_head(folder)
    with pytest.raises(ModelError, match=r"head\.json: cannot be read .* train it again"):
        load_head(folder / "absent")


def test_damaged_tensors_are_refused(saved):
    head, folder = saved
    head.q_mean[2] = torch.nan
    save_head(head, folder)
    with pytest.raises(ModelError, match=r"head\.safetensors: m holds NaN or infinite values"):
        load_head(folder)
    (folder / "head.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ModelError, match=r"head\.safetensors: does not hold"):
        load_head(folder)
    (folder / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors: does not hold"):
        load_head(folder)
