"""Gradients of Keras' torch backend: starts all reductions, then waits for them.

Thread contract: as Reduction's.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Callable

import torch

from maypole import _native
from maypole._keras.gradients import BackendGradients
from maypole._keras.values import as_array
from maypole.arrays import same_values
from maypole.common import basics
from maypole.common.constants import Min
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.reducer import Reducer
from maypole.torch.ops import allreduce


def _stand_in(variable: Any) -> torch.Tensor:
    """Returns a stand-in for a variable where maypole.torch needs a parameter with `grad`; it takes no memory."""
    return variable.value.new_zeros(()).expand(variable.value.shape)


class Gradients(BackendGradients):
    """See BackendGradients."""

    def __init__(self) -> None:
        self._reducer: Any = None
        self._joins = 0
        self._recurring = same_values.Recurring("DistributedOptimizer")
        self._compared_since = 0, 0  # basics.joins() and the number of join()s
        self._slots: dict[int, torch.Tensor] = {}  # by the variable's index

    @not_compiled
    def complete(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
                 variables: Sequence[Any]) -> list[Any]:
        """As there.

        A rank whose loss did not depend on a variable has no gradient for it, while the others
        wait for one. As long as there are variables whose gradient no rank has had, each step
        has one small allreduce about them.
        """
        reducer = self._reducer_of(reduction)
        for i, variable in zip(indices, variables):
            if i not in self._slots:
                self._slots[i] = _stand_in(variable)
        slots = [self._slots[i] for i in indices]
        for slot, grad in zip(slots, grads):
            slot.grad = grad
        # All gradients that Keras passes were computed in this step, and nothing else reads them before they are
        # reduced.
        reducer.layouts.learn(slots, f"{prefix}.layouts", {slot for slot in slots if slot.grad is not None},
                              reads=False, unaware=False)
        for slot in slots:
            slot.grad = None
        return [torch.zeros_like(variable.value) if grad is None and reducer.layouts.is_known(slot) else grad
                for slot, grad, variable in zip(slots, grads, variables)]

    def owns(self, grads: Sequence[Any], variables: Sequence[Any]) -> bool:
        # The gradients are those in torch's parameters; the next backward pass makes new ones.
        return all(g is None or getattr(v, "value", v).grad is g for g, v in zip(grads, variables))

    @not_compiled
    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        # Makes sparse gradients dense, as Keras' optimizers require.
        reducer = self._reducer_of(reduction)
        reducer.postscale = postscale
        dense = [g.to_dense() if g.is_sparse else g for g in grads]
        results = [d.detach() if own or d is not g else d.detach().clone()
                   for d, g in zip(dense, grads)]
        waits = [reducer.start_dense(result, f"{prefix}.{i}")
                 for result, i in zip(results, indices)]
        try:
            _wait_all(waits)
        except RuntimeError:
            reducer.forget()  # the ranks may know different things now
            raise
        return results

    def can_compare(self) -> bool:
        return True

    @not_compiled
    def compared(self, optimizer: Any, reduction: Any, variables: Sequence[Any],
                 facts_of: Callable[[Sequence[Any]], Any], name: str) -> Any:
        joins = basics.joins(), _native.library().counts["join"]
        if self._compared_since != joins:  # ranks that are new, or have joined, have missed steps
            self._compared_since = joins
            self._recurring.forget()
        self._recurring.until_next -= 1
        if self._recurring.until_next <= 0:
            self._recurring.run(facts_of([as_array(v.value) for v in variables]), name, reduction.process_set)
        return contextlib.nullcontext()

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        return allreduce(value.to(torch.uint8), name=name, op=Min,
                         process_set=reduction.process_set).to(torch.bool)

    def _reducer_of(self, reduction: Any) -> Reducer:
        if self._reducer is None:
            self._reducer = Reducer(reduction.compression, reduction.op, 1.0, True, False,
                                    reduction.process_set)
            self._reducer.prescale = reduction.prescale
        if self._joins != basics.joins():
            # New ranks do not know what ranks of an earlier membership epoch have learned.
            self._joins = basics.joins()
            self._reducer.forget()
        return self._reducer


def _wait_all(waits: Sequence[Any]) -> None:
    """Calls all functions, then raises the first error, so that no reduction is left pending."""
    first_error = None
    for wait in waits:
        try:
            wait()
        except RuntimeError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
