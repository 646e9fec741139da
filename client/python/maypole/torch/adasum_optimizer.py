"""DistributedOptimizer(op=Adasum): combines the ranks' steps, not their gradients.

    starts = copies of the parameters
    the optimizer's own step, with this rank's gradients
    delta = parameter - start, for each parameter
    parameter = start + the ranks' Adasum of delta

So the learning rate need not grow with the number of ranks. Momentum and other
state are the rank's own.

Thread contract: as torch's optimizers, one thread at a time. All ranks must
step together. Invariant: if the ranks' parameters are equal before step(), they
are after it, unless it raises; then the parameters are those before the step.
"""

import contextlib
from typing import Any, Callable, Iterator, Optional

import torch

from maypole.torch import adasum
from maypole.torch._compiling import not_compiled

_NAME = "DistributedOptimizer:delta"


class DistributedAdasumOptimizer(torch.optim.Optimizer):
    """The methods that DistributedOptimizer(op=Adasum) adds to an optimizer."""

    # pylint: disable=super-init-not-called
    def _attach(self, compression: Any, backward_passes_per_step: int,
                process_set: Any) -> None:
        self._compression = compression
        self._process_set = process_set
        self.backward_passes_per_step = backward_passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accepted for compatibility: nothing is sent before step(), so any
        number of passes may precede it."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: step() always combines the ranks' steps."""
        raise AssertionError("skip_synchronize(): with op=Adasum, step() itself "
                             "combines the ranks' steps, so it cannot be skipped")
        yield  # pylint: disable=unreachable

    @not_compiled
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Makes this rank's step, then combines it with the others' steps."""
        arguments = () if closure is None else (closure,)
        if self._process_set.size() == 1:
            return super().step(*arguments)
        parameters = [
            p for group in self.param_groups for p in group["params"]
            if p.requires_grad
        ]
        starts = [p.detach().clone() for p in parameters]
        loss = super().step(*arguments)
        with torch.no_grad():
            deltas = [p - start for p, start in zip(parameters, starts)]
            for parameter, start in zip(parameters, starts):
                parameter.copy_(start)
            for parameter, delta in zip(parameters, self._combined(deltas)):
                parameter.add_(delta)
        return loss

    def _combined(self, deltas: Any) -> Any:
        compressed = [self._compression.compress(delta) for delta in deltas]
        results = adasum.allreduce([small for small, _ in compressed], _NAME,
                                   1.0, 1.0, self._process_set, False)
        return [
            self._compression.decompress(result, ctx)
            for result, (_, ctx) in zip(results, compressed)
        ]

    # See _DistributedOptimizer.
    step.hooked = True  # type: ignore[attr-defined]
