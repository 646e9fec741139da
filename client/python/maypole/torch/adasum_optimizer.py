"""DistributedOptimizer(op=Adasum): combines the ranks' steps, not their gradients.

    starts = copies of the parameters
    the optimizer's own step, with this rank's gradients
    delta = parameter - start, for each parameter
    parameter = start + the ranks' Adasum of delta

So the learning rate need not grow with the number of ranks. Each rank has its own
momentum and other state.

Thread contract: as torch's optimizers, one thread at a time. All ranks must
step together. Invariant: if the ranks' parameters are equal before step(), they
are equal after it. If step() raises, the parameters are those before the step.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import torch

from maypole.common import process_sets
from maypole.common.constants import Adasum
from maypole.torch import async_ops
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.equal_start import EqualStart
from maypole.torch._gradients.parameters import follow_names
from maypole.torch._wrapping import Wrapped, step_is_counted

_NAME = "DistributedOptimizer:delta"


class _Attached(NamedTuple):
    options: Any
    start: EqualStart


class DistributedAdasumOptimizer(Wrapped):
    """The methods that DistributedOptimizer(op=Adasum) adds to an optimizer."""

    def _attach(self) -> None:
        process_set = self._maypole_options.process_set
        process_sets.id_of(process_set)
        self._maypole = _Attached(self._maypole_options,
                                  EqualStart(process_set, has_own_state=True,
                                             others=self._maypole_options.others))

    @property
    def backward_passes_per_step(self) -> int:
        """Has no effect: see set_backward_passes_per_step()."""
        return self._maypole_options.backward_passes_per_step

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler of torch reads this before it looks at gradients."""
        raise ValueError(
            "DistributedOptimizer(op=Adasum) cannot be used with a GradScaler: "
            "each rank makes its own step, and ranks would disagree about a "
            "gradient that is infinite; use op=Average, or bfloat16 without a "
            "GradScaler")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accepted for compatibility: nothing is sent before step(), so any number of passes may precede it."""
        self._maypole_options.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: step() always combines the ranks' steps."""
        raise AssertionError("skip_synchronize(): with op=Adasum, step() itself "
                             "combines the ranks' steps, so it cannot be skipped")
        yield

    @step_is_counted
    @not_compiled
    def step(self, closure: Optional[Callable[[], Any]] = None, *args: Any,
             **kwargs: Any) -> Any:
        """Makes this rank's step, then combines it with the others' steps."""
        self._count_step()
        if closure is not None:
            args = (closure,) + args
        attached = self._attached()
        if attached is None or attached.options.process_set.size() == 1:
            return super().step(*args, **kwargs)
        names = attached.options.names
        before = len(names)
        if follow_names(names, self) or len(names) > before:
            attached.start.forget()
        start = attached.start
        unequal = start.check(self, names, _NAME + ":start") or start.check_step(
            self, names, _NAME + ":start", start.wanted)
        if unequal is not None:
            start.forget()
            raise unequal
        # Momentum moves a parameter even after it was frozen.
        parameters = [
            p for group in self.param_groups for p in group["params"]
            if p.requires_grad or self.state.get(p)
        ]
        starts = [p.detach().clone() for p in parameters]
        loss = super().step(*args, **kwargs)
        with torch.no_grad():
            deltas = [p - start for p, start in zip(parameters, starts)]
            for parameter, start in zip(parameters, starts):
                parameter.copy_(start)
            for parameter, delta in zip(parameters, self._combined(deltas)):
                parameter.add_(delta)
        return loss

    def _combined(self, deltas: Any) -> Any:
        options = self._maypole.options
        compression = options.compression
        compressed = [compression.compress(delta) for delta in deltas]
        results = async_ops.synchronize(
            async_ops.grouped_allreduce_async(
                [small for small, _ in compressed], name=_NAME, op=Adasum,
                process_set=options.process_set))
        return [
            compression.decompress(result, ctx)
            for result, (_, ctx) in zip(results, compressed)
        ]
