"""Aggregators of another package, right and wrong ones, named `tests.network.foreign:Class`."""

import torch
from torch import nn


class Smooth(nn.Module):
    """Smooth maximum of the slice logits, one scan at a time."""

    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, features, offsets):
        scans = self.linear(features).squeeze(-1).split(offsets.diff().tolist())
        return torch.stack([scan.logsumexp(0) for scan in scans])


class PerSlice(Smooth):
    def forward(self, features, offsets):
        return self.linear(features).squeeze(-1)


class Column(Smooth):
    def forward(self, features, offsets):
        return super().forward(features, offsets)[:, None]


class Pair(Smooth):
    def forward(self, features, offsets):
        return super().forward(features, offsets), None


class Classes(Smooth):
    def forward(self, features, offsets):
        return super().forward(features, offsets) > 0


class Broken(Smooth):
    def forward(self, features, offsets):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


class Remembers(Smooth):
    def get_extra_state(self):
        return {"step": 0}

    def set_extra_state(self, state):
        pass


class NoArguments(nn.Module):
    def __init__(self):
        super().__init__()


def function(features):
    return Smooth(features)
