"""Batch normalisation over the global batch, also on the CPU, where torch's `SyncBatchNorm` refuses to run.

The statistics are those of one process that had all rows (count-weighted, so batches of different sizes are right), and so is the
gradient: the all-reduce of count, sum and sum of squares is differentiated. Running variance is unbiased over the global count, as in
`torch.nn.BatchNorm2d` on one process. Source: Ioffe and Szegedy 2015, with the sums taken over all replicas.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from xaccel_torch.compat import HAS_CPU_SYNC_BATCH_NORM


class _SumOverReplicas(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """`BatchNorm1d/2d/3d` whose statistics in training are over the batches of all processes."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dims (batch, channels, ...), got shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training:
            # Evaluation never waits for other processes: running statistics, or the batch's own where none are kept.
            own = self.running_mean is None
            return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, own, 0.0, self.eps)
        dims = [0, *range(2, input.dim())]
        # float32 at least: sums of squares over a large batch overflow half precision.
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = values.new_tensor([values.numel() / values.shape[1]])
        sums = _SumOverReplicas.apply(torch.cat([values.sum(dims), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(1, -1, *[1] * (input.dim() - 2))
        variance = _SumOverReplicas.apply(centred.square().sum(dims)) / total
        self._update_running(mean.detach(), variance.detach(), float(total))
        shape = (1, -1, *[1] * (input.dim() - 2))
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _update_running(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None, "running statistics come with their counter"
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def use_global_statistics(model: nn.Module, device_kind: str) -> nn.Module:
    """The model with every batch normalisation made global; parameters and buffers are the same objects."""
    if device_kind == "cuda" or HAS_CPU_SYNC_BATCH_NORM:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if isinstance(model, nn.modules.batchnorm._BatchNorm) and not isinstance(model, GlobalBatchNorm):
        return _converted(model)
    for name, child in list(model.named_children()):
        converted = use_global_statistics(child, device_kind)
        if converted is not child:
            setattr(model, name, converted)
    return model


def _converted(norm: nn.modules.batchnorm._BatchNorm) -> GlobalBatchNorm:
    new = GlobalBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    for name, parameter in norm.named_parameters(recurse=False):
        setattr(new, name, parameter)
    for name, buffer in norm.named_buffers(recurse=False):
        setattr(new, name, buffer)
    new.train(norm.training)
    return new
