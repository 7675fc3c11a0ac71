"""Batch norm over the slices of all ranks: a step on several GPUs is then the step on all their scans.

In: a model with `nn.BatchNorm2d`. Out: the same model, weights and names unchanged, whose batch statistics in
training are those of all ranks together. On GPUs these are torch's own `SyncBatchNorm`; it has no CPU
version, so there is one here.

It is there for one process too: where channels come last, torch's own on a CPU adds float32 values one after
the other, and a sum that has grown swallows what is added. On real pictures its means are off by 0.007
standard deviations at 2^20 values a channel, by 0.014 at 2^21, by 0.1 at 2^24.

Shapes: n slices, F channels, H, W pixels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ich_mil.ranks import ALONE, Ranks, these_ranks

FEW = 2**21
"""Up to so many values a channel one process leaves to torch's own batch norm: at 96 pixels a step would take
a sixth longer or more."""


class _Normalised(torch.autograd.Function):
    """(x - m) w / sqrt(v + eps) + b with mean m and variance v over all ranks: y, m, v, and values a channel.

    A rank's loss depends on the slices of all, so its derivative by x has sums over all ranks too. Of the
    size of x only x is kept for it, which the ReLU before keeps anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        here = torch.cat([x.sum((0, 2, 3)), x.new_tensor([x.numel() / x.shape[1]])])  # (F + 1,)
        total = ranks.total(here)
        count = total[-1]
        mean = total[:-1] / count  # (F,)
        centred = x - mean[:, None, None]
        variance = ranks.total(centred.square().sum((0, 2, 3))) / count  # (F,)
        scale = weight * torch.rsqrt(variance + eps)
        y = centred.mul_(scale[:, None, None]).add_(bias[:, None, None])
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps, ctx.ranks = eps, ranks
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, variance, count = ctx.saved_tensors
        inverse = torch.rsqrt(variance + ctx.eps)  # (F,)
        centred = x - mean[:, None, None]
        along, level = (g * centred).sum((0, 2, 3)), g.sum((0, 2, 3))  # (F,)
        slope, shift = ctx.ranks.total(torch.stack([along * inverse**2, level])) / count  # (F,)
        # dx = w (g - shift - slope (x - m)) / sqrt(v + eps)
        dx = centred.mul_(-slope[:, None, None]).add_(g).sub_(shift[:, None, None])
        return dx.mul_((weight * inverse)[:, None, None]), along * inverse, level, None, None


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm for CPUs: in training, mean and variance are right however many values there are.

    Attributes:
        ranks: whose slices they are of.
    """

    ranks = ALONE

    def forward(self, x: Tensor) -> Tensor:
        """(n, F, H, W) to the same; ranks may have different n. `ValueError`: one value on all together."""
        few = x.numel() <= FEW * x.shape[1]
        if not self.training or x.device.type != "cpu" or (self.ranks.size == 1 and few):
            return super().forward(x)
        y, mean, variance, count = _Normalised.apply(x, self.weight, self.bias, self.eps, self.ranks)
        if count == 1:
            raise ValueError("batch norm needs more than one value per channel in training")
        self._follow(mean, variance * count / (count - 1))
        return y

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


def right_statistics(module: nn.Module) -> nn.Module:
    """`module`, in place, with batch norms that are right on CPUs; another one where it is a batch norm."""
    if isinstance(module, nn.BatchNorm2d) and not isinstance(module, SharedBatchNorm2d):
        norm = SharedBatchNorm2d(module.num_features, eps=module.eps, momentum=module.momentum)
        norm._parameters, norm._buffers = module._parameters, module._buffers
        norm.train(module.training)
        # timm has activations inside of its batch norms
        after = [part for name, part in module.named_children() if name in ("drop", "act")]
        return nn.Sequential(norm, *after) if after else norm
    for name, child in module.named_children():
        module.add_module(name, right_statistics(child))
    return module


def share_statistics(module: nn.Module, device: torch.device) -> nn.Module:
    """`module`, in place, with batch statistics of all ranks; another one where it is a batch norm."""
    if device.type != "cpu":
        shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return shared
    module = right_statistics(module)
    for norm in module.modules():
        if isinstance(norm, SharedBatchNorm2d):
            norm.ranks = these_ranks()
    return module
