"""Checkpoints of training, in the folder `cnn` of a run, that hold code: refused, and the code is not run."""

import os
import pickle

import pytest
import torch

from ich_mil.data.splits import draw_splits
from ich_mil.encoders.settings import CnnSettings, EncoderSettings
from ich_mil.errors import ModelError
from ich_mil.training.fit_cnn import fit_cnn
from ich_mil.training.settings import TrainingSettings


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "in a checkpoint"])
def test_a_checkpoint_with_code_is_refused_and_not_run(prepared, tmp_path, kind):
    out, payload = tmp_path / "cnn", Payload(tmp_path / "mark")
    out.mkdir()
    with (out / "last.ckpt").open("wb") as file:
        match kind:
            case "pickle":
                pickle.dump(payload, file)
            case "torch":
                torch.save(payload, file)
            case _:
                torch.save({"state_dict": {}, "loops": {}, "callbacks": {"x": payload}}, file)
    splits = draw_splits(prepared.scans, validation=0.3, test=0.0, seed=0)
    with pytest.raises(ModelError, match=r"last\.ckpt: cannot be read"):
        fit_cnn(
            prepared,
            splits,
            out,
            encoder=EncoderSettings(size=32),
            cnn=CnnSettings(),
            training=TrainingSettings(max_epochs=1, bags=4),
            seed=0,
        )
    assert not (tmp_path / "mark").exists()
