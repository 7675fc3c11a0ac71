"""What benchmarks tell on a GPU, one that is pretended: no figure is lost with what takes too long."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import kernels_gram, timing

SIZE = 300, 4, 5, 2


@pytest.fixture
def pretended(monkeypatch):
    """Every call takes 0.2 s and holds a megabyte."""

    def once(call):
        call()
        return 0.2, 1_000_000

    case = kernels_gram.random_case(*SIZE)
    monkeypatch.setattr(timing, "once", once)
    monkeypatch.setattr(kernels_gram, "random_case", lambda *_: case)
    monkeypatch.setattr(kernels_gram, "DEVICE", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(kernels_gram, "float32_rate", lambda: 1e12)


def stopped(_):
    """As `torch.compile` where the time is up before it ends."""

    def call(*_):
        raise KeyboardInterrupt

    return call


def test_a_row_is_told_before_anything_is_compiled(pretended, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", stopped)
    with pytest.raises(KeyboardInterrupt):
        kernels_gram._gram_row(*SIZE)
    told = capsys.readouterr().err.splitlines()[-1]
    assert "| 200 ms (200-200) | - | 200 ms (200-200) |" in told
    assert "no: 0% of 1.0 TFlop/s, 1.0 x eager, peak 1.00 of eager" in told


def test_the_row_that_is_kept_has_what_was_compiled(pretended, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    kept = kernels_gram._gram_row(*SIZE)
    assert kept[3:6] == ["200 ms (200-200)"] * 3
    assert kept[-1] == "no: 0% of 1.0 TFlop/s, 1.0 x eager, 1.0 x compiled, peak 1.00 of eager"
    assert "(eager)" in kept[1]
    assert "(compiled)" in kept[1]
