"""Batch norm over the slices of all ranks: a step on several GPUs is then the step on all their scans.

In: a model with `nn.BatchNorm2d`. Out: the same model, weights and names unchanged, whose batch statistics in
training are those of all ranks together. On GPUs these are torch's own `SyncBatchNorm`; it has no CPU
version, so there is one here.

Shapes: n slices, F channels, H, W pixels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ich_mil.ranks import these_ranks


class _Total(torch.autograd.Function):
    """The sum over all ranks; so is its derivative, because every rank's loss depends on it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return these_ranks().total(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return these_ranks().total(gradient)


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose mean and variance in training are those of the slices of all ranks, on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, F, H, W) to the same; ranks may have different n. `ValueError`: one value on all together."""
        if not self.training:
            return super().forward(x)
        here = torch.cat([x.sum((0, 2, 3)), x.new_tensor([x.numel() / x.shape[1]])])  # (F + 1,)
        total: Tensor = _Total.apply(here)
        count = total[-1].detach()
        if count == 1:
            raise ValueError("batch norm needs more than one value per channel in training")
        mean = (total[:-1] / count)[:, None, None]  # (F, 1, 1)
        centred = x - mean
        variance: Tensor = _Total.apply(centred.square().sum((0, 2, 3))) / count  # (F,)
        self._follow(mean.detach().flatten(), variance.detach() * count / (count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return centred * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, as `nn.BatchNorm2d` does."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked.add_(1)


def share_statistics(module: nn.Module, device: torch.device) -> nn.Module:
    """`module`, in place, with batch statistics of all ranks; itself where it is a batch norm."""
    if device.type != "cpu":
        shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return shared
    if isinstance(module, nn.BatchNorm2d):
        norm = SharedBatchNorm2d(module.num_features, eps=module.eps, momentum=module.momentum)
        norm._parameters, norm._buffers = module._parameters, module._buffers
        return norm.train(module.training)
    for name, child in module.named_children():
        module.add_module(name, share_statistics(child, device))
    return module
