"""A head on disk: the same to the bit, and every kind of wrong file named with its remedy."""

import errno
import json

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ich_mil.errors import DataError, ModelError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.storage import load_head, save_head
from tests.gp.synthetic import scans


@pytest.fixture
def saved(tmp_path):
    head, _ = fit(
        Bags(*scans()), HeadSettings(n_inducing=8, sweeps=4, lengthscale_squared=2.3, random_state=5)
    )
    head.calibration = Calibration("max", 0.123456789012345, -0.3, slice_intercept=1 / 3)
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
    one, two = (
        predict(m, Bags(x, offsets, ids=ids), samples=20, calibration=m.calibration) for m in (head, again)
    )
    for name in ("slice_mean", "slice_std", "scan_mean", "scan_std", "scan_low", "scan_high"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert torch.equal(head(x).mean, again(x).mean)
    assert torch.equal(head(x).variance, again(x).variance)
    assert sorted(p.name for p in folder.iterdir()) == ["head.json", "head.safetensors"]


def test_the_raised_jitter_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.sparse_gp.JITTER", 1e-18)
    settings = HeadSettings(n_inducing=30, sweeps=3, lengthscale_squared=1e9)
    with pytest.warns(UserWarning, match="is singular at a jitter of 1.0e-18: raised to"):
        head, _ = fit(Bags(*scans()), settings)
    save_head(head, tmp_path)
    x, offsets, _ = scans(5, seed=2)
    one, two = (predict(m, Bags(x, offsets), samples=20) for m in (head, load_head(tmp_path)))  # none warns
    assert torch.equal(one.slice_mean, two.slice_mean)
    assert torch.equal(one.slice_std, two.slice_std)


class Own(RBFKernel):
    """An RBF kernel of some features, changed."""

    def __init__(self, columns=slice(None), change=lambda k: k):
        super().__init__()
        self.columns, self.change = columns, change

    def forward(self, x1, x2, **options):
        return self.change(super().forward(x1[..., self.columns], x2[..., self.columns], **options))


@pytest.mark.parametrize(
    ("fitted", "given"),
    [(Own(), Own(change=lambda k: 1.001 * k)), (Own(columns=[0, 1]), Own(columns=[1, 2]))],
    ids=["a little", "other features"],
)
def test_a_kernel_unlike_the_fitted_is_refused(fitted, given, tmp_path):
    head, _ = fit(Bags(*scans()), HeadSettings(n_inducing=8, sweeps=1), kernel=fitted)
    save_head(head, tmp_path)
    assert load_head(tmp_path, kernel=fitted).given == ("kernel",)
    with pytest.raises(ModelError, match="the head was fitted with a kernel unlike kernel="):
        load_head(tmp_path, kernel=given)


def test_a_kernel_of_some_features_comes_back(tmp_path):
    x, offsets, labels = scans()
    # GPyTorch's scale takes over `active_dims` of what it scales: the same tensor under two names
    kernel = ScaleKernel(RBFKernel(active_dims=(0, 2))) + ScaleKernel(RBFKernel(active_dims=(1,)))
    settings = HeadSettings(n_inducing=8, sweeps=2)
    head, _ = fit(Bags(x, offsets, labels), settings, kernel=kernel)
    save_head(head, tmp_path)
    fresh = ScaleKernel(RBFKernel(active_dims=(0, 2))) + ScaleKernel(RBFKernel(active_dims=(1,)))
    again = load_head(tmp_path, kernel=fresh)
    said = [predict(one, Bags(x, offsets), samples=20) for one in (head, again)]
    assert torch.equal(said[0].scan_mean, said[1].scan_mean)


def test_a_failed_save_leaves_no_file(saved, tmp_path, monkeypatch):
    def full(_, path, *__):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(DataError, match=r"head\.safetensors: the disk is full"):
        save_head(saved[0], tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def edit(folder, **changes):
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_wrong_files_are_named_with_reason_and_remedy(saved):
    _, folder = saved
    with pytest.raises(ModelError, match=r"head\.json: the head was fitted without one"):
        load_head(folder, kernel=RBFKernel())
    with pytest.raises(
        ModelError, match=r"head\.json: the head was trained on 3 features a slice, these have 8; use"
    ):
        load_head(folder, n_features=8)
    edit(folder, format="ich_mil.head.0")
    with pytest.raises(ModelError, match=r"head\.json: is of another version \('ich_mil\.head\.0', .* train"):
        load_head(folder)
    edit(folder, format="ich_mil.head.2", n_features=4)
    with pytest.raises(ModelError, match=r"head\.safetensors: does not hold the head that head\.json"):
        load_head(folder)
    edit(folder, n_features=3, settings={"alpha": -1.0})
    with pytest.raises(ModelError, match=r"head\.json: cannot be read \(.*alpha"):
        load_head(folder)
    (folder / "head.json").write_text("{")
    with pytest.raises(ModelError, match=r"head\.json: cannot be read"):
        load_head(folder)
    with pytest.raises(ModelError, match=r"head\.json: cannot be read .* train again"):
        load_head(folder / "absent")


def test_heads_of_earlier_versions_are_trained_again(saved):
    _, folder = saved
    settings = json.loads((folder / "head.json").read_text())["settings"]
    edit(folder, settings=settings | {"smooth_mm": 5.0})
    with pytest.raises(ModelError, match=r"head\.json: cannot be read \(settings\.smooth_mm.* train again"):
        load_head(folder)


def test_damaged_tensors_are_refused(saved):
    head, folder = saved
    head.draws = torch.zeros(3, 8, dtype=torch.float64)
    head.draws[-1, -1] = torch.inf
    save_head(head, folder)
    with pytest.raises(ModelError, match=r"head\.safetensors: .*draws holds NaN or infinite values"):
        load_head(folder)
    (folder / "head.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ModelError, match=r"head\.safetensors: cannot be read"):
        load_head(folder)
    (folder / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors: cannot be read"):
        load_head(folder)
