"""BatchNorm with the statistics of all ranks' batches.

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), hvd.SyncBatchNorm(8))
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)   # all at once

Forward: each rank gathers all ranks' (count, mean, sum of squared deviations)
of each channel and combines them (Chan's formula), so that no precision is lost
in a sum of squares. Backward: one allreduce of two sums per channel. The
gradients of weight and bias are those of the rank's own part of the batch, as for
every other layer; DistributedOptimizer reduces them.

Thread contract: that of autograd; all ranks must run forward and backward of
the same layers in the same order. The operations of a layer are named after its
weight in a DistributedOptimizer, so ranks with another order get an error. Layers
whose weight no optimizer has are matched by order only.
"""

from typing import Any, Optional

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from maypole.common import basics
from maypole.common.constants import Sum
from maypole.common.process_sets import global_process_set
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.parameters import name_of
from maypole.torch.async_ops import allgather_async, allreduce_async_, synchronize


class SyncBatchNorm(_BatchNorm):
    """Like torch.nn.BatchNorm1d, 2d and 3d, over the batches of all ranks.

    Takes tensors of two or more dimensions, with the channels in the second, on
    the CPU or a CUDA device. Batches may differ in size, and be empty on some
    ranks. In evaluation, and with one rank, it is an ordinary BatchNorm.
    process_set: the ranks whose batches count; on others it is an ordinary
    BatchNorm. In training, raises ValueError if all batches together have only
    one value per channel.
    """

    def __init__(self, num_features: int, eps: float = 1e-5,
                 momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True,
                 process_set: Any = global_process_set):
        super().__init__(num_features, eps, momentum, affine,
                         track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
            cls,
            module: torch.nn.Module,
            process_set: Any = global_process_set) -> torch.nn.Module:
        """Returns `module` with a SyncBatchNorm in place of each BatchNorm.

        The new layers have the parameters, buffers and mode of the old ones. If
        `module` is a BatchNorm itself, the new layer is returned. Call it
        before the optimizer is made, as with torch.nn.SyncBatchNorm. Raises
        ValueError for a lazy BatchNorm whose number of channels is not known
        yet.
        """
        output = module
        if isinstance(module, _BatchNorm):
            output = cls._like(module, process_set)
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_set)
            if converted is not child:
                setattr(output, name, converted)
        return output

    @classmethod
    def _like(cls, module: _BatchNorm, process_set: Any) -> "SyncBatchNorm":
        if module.num_features == 0:
            raise ValueError(
                f"SyncBatchNorm.convert_sync_batchnorm: a {type(module).__name__}"
                " has no number of channels yet; run the model once before")
        layer = cls(module.num_features, module.eps, module.momentum,
                    module.affine, module.track_running_stats, process_set)
        layer.train(module.training)
        for name in ("weight", "bias", "running_mean", "running_var",
                     "num_batches_tracked"):
            setattr(layer, name, getattr(module, name))
        if hasattr(module, "qconfig"):
            layer.qconfig = module.qconfig
        return layer

    def _check_input_dim(self, input: torch.Tensor) -> None:  # pylint: disable=redefined-builtin
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: the input has {input.dim()} "
                             "dimension(s), expected at least 2")
        if input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: the input has {input.shape[1]} "
                             f"channels, expected {self.num_features}")

    @not_compiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """Normalizes `input`; in training with the statistics of all ranks."""
        basics.size()  # raises ValueError before init()
        ranks = self.process_set
        if not self.training or not ranks.included() or ranks.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, variance, count = _SyncBatchNorm.apply(
            input, self.weight, self.bias, self.eps, ranks,
            name_of(self.weight, ranks))
        self._track(mean, variance, int(count))
        return output

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor,
               count: int) -> None:
        if not self.track_running_stats or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:  # the average over all batches
            factor = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        for running, new in ((self.running_mean, mean),
                             (self.running_var, unbiased)):
            running.lerp_(new.to(running.dtype), factor)


class _SyncBatchNorm(torch.autograd.Function):
    """Returns (output, mean, biased variance, number of values per channel)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Optional[torch.Tensor],
                bias: Any, eps: float, process_set: Any,
                name: Optional[str]) -> tuple[torch.Tensor, ...]:
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance, count = _statistics(values, process_set,
                                            name and name + ":statistics")
        scale = torch.rsqrt(variance + eps).to(values.dtype)
        normal = (values - _per_channel(mean.to(values.dtype), x)) * \
            _per_channel(scale, x)
        output = normal
        if weight is not None:
            output = normal * _per_channel(weight.to(values.dtype), x) + \
                _per_channel(bias.to(values.dtype), x)
        ctx.save_for_backward(normal, scale, weight)
        ctx.count, ctx.process_set = count, process_set
        ctx.name = name and name + ":means"
        numbers = (mean, variance, torch.tensor(count, device="cpu"))
        ctx.mark_non_differentiable(*numbers)
        return (output.to(x.dtype),) + numbers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor,
                 *_: Any) -> tuple[Optional[torch.Tensor], ...]:
        normal, scale, weight = ctx.saved_tensors
        dtype = grad.dtype
        grad = grad.to(normal.dtype)
        others = _other_dims(grad)
        own_bias = grad.sum(others)
        own_weight = (grad * normal).sum(others)
        grad_x = None
        if ctx.needs_input_grad[0]:
            means = _allreduced(torch.stack((own_bias, own_weight)),
                                ctx.process_set, ctx.name) / ctx.count
            grad_x = grad - _per_channel(means[0], grad) - \
                normal * _per_channel(means[1], grad)
            factor = scale if weight is None else scale * weight.to(scale.dtype)
            grad_x = (grad_x * _per_channel(factor, grad)).to(dtype)
        if weight is None:
            return (grad_x,) + (None,) * 5
        return (grad_x, own_weight.to(weight.dtype), own_bias.to(weight.dtype),
                None, None, None)


def _other_dims(x: torch.Tensor) -> tuple[int, ...]:
    return (0,) + tuple(range(2, x.dim()))


def _per_channel(numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return numbers.reshape((1, -1) + (1,) * (x.dim() - 2))


def _allreduced(x: torch.Tensor, process_set: Any, name: Optional[str]) -> Any:
    return synchronize(
        allreduce_async_(x.contiguous(), name=name, op=Sum,
                         process_set=process_set))


def _statistics(
        x: torch.Tensor, process_set: Any,
        name: Optional[str]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and biased variance of each channel over the ranks, in float64, and the number of values."""
    channels = x.shape[1]
    own = x.numel() // channels if channels else 0
    mean = torch.zeros(channels, dtype=torch.float64, device=x.device)
    squares = torch.zeros_like(mean)
    if own > 0:
        mean = x.mean(_other_dims(x)).to(torch.float64)
        apart = x - _per_channel(mean.to(x.dtype), x)
        # `mean` is rounded to x's dtype; this is the remainder.
        rest = apart.mean(_other_dims(x)).to(torch.float64)
        squares = (apart * apart).sum(_other_dims(x)).to(torch.float64)
        squares -= own * rest * rest
        mean = mean + rest
    count = torch.full((1,), own, dtype=torch.float64, device=x.device)
    row = torch.cat((count, mean, squares)).reshape(1, -1)
    # One row per rank; a rank that has joined has none.
    rows = synchronize(allgather_async(row, name, process_set=process_set))
    counts = rows[:, :1]
    means, all_squares = rows[:, 1:].split(channels, dim=1)
    total = counts.sum()
    values = int(total.item())
    if values < 2:
        raise ValueError("SyncBatchNorm: the batches of all ranks together "
                         f"have {values} value(s) per channel, expected more "
                         "than one in training")
    mean = (counts * means).sum(0) / total
    squares = (all_squares + counts * (means - mean)**2).sum(0)
    return mean, squares / total, values
