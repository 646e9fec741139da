"""The base of the backends' classes for gradients; see Reduction.gradients.

Thread contract: as Reduction's.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from maypole._keras.values import as_array
from maypole._keras.variables import name_of
from maypole.arrays import same_on_all, same_values

_MOST_ELEMENTS = 1 << 16


class BackendGradients:
    """Reduces the gradients of one optimizer; a class for each backend."""

    def complete(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
                 variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients, with zeros in place of those that only other ranks have.

        On JAX all ranks have the same gradients, because JAX itself returns zeros.
        """
        return list(grads)

    def owns(self, grads: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether these gradients may be overwritten."""
        return False

    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        """Returns the reduced gradients.

        indices: parts of the operations' names. own: whether `grads` may be overwritten. postscale:
        replaces that of the reduction.
        """
        raise NotImplementedError

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        """Returns the minimum of the ranks' values, a boolean scalar."""
        raise NotImplementedError

    def accumulated(self, optimizer: Any, reduce: Callable[[list[Any]], list[Any]],
                    grads: list[Any]) -> list[Any]:
        """Returns reduce(grads) in the passes in which the optimizer steps.

        The optimizer calls it when it clips the sum of its gradients.
        """
        return reduce(grads)

    def computed(self, loss: Any, variables: Any, grad_loss: Any, tape: Any) -> list[Any]:
        """Returns this rank's (gradient, variable) pairs; see _compute_gradients() in keras3.py."""
        raise NotImplementedError("_compute_gradients() needs Keras' TensorFlow backend, which has "
                                  "a gradient tape; compute them as this backend does, and pass "
                                  "them to apply(), which reduces them")

    def outside(self) -> Any:
        """Returns a context in which the values of variables can be read during a step."""
        return contextlib.nullcontext()

    def not_from(self, reduction: Any, grads: Sequence[Any], reduced: Sequence[Any], name: str,
                 variables: Sequence[Any]) -> list[bool]:
        """Returns for each gradient whether it has not been computed from the reduced one; see Ahead.

        This one is for backends that compute eagerly: what comes from reduced gradients is equal on all ranks.
        """
        row = np.array([0 if grad is before else _digest(self.values(grad)) for grad, before in zip(grads, reduced)],
                       np.int64)
        rows = same_on_all.gather(row, [f"{i}{name_of(variable)}" for i, variable in enumerate(variables)], name,
                                  reduction.process_set, _other_gradients)
        return (rows != rows[:1]).any(axis=0).tolist()

    def values(self, grad: Any) -> np.ndarray:
        """Returns a gradient's values."""
        return as_array(grad)

    def can_compare(self) -> bool:
        """Whether the ranks can be compared in the step that is being made, in a loop of the program's own."""
        return False

    def compared(self, optimizer: Any, reduction: Any, variables: Sequence[Any],
                 facts_of: Callable[[Sequence[Any]], Any], name: str) -> Any:
        """Counts a step, and compares the ranks if that is due; see equal_start.check_loop().

        facts_of: makes the facts from the variables' values. Returns a context for the reduction.
        """
        raise NotImplementedError

    def place(self) -> Any:
        """Returns the graph that is being made; None if there is none."""
        return None

    def scaled(self, grad: Any, factor: float) -> Any:
        """Returns a gradient that stays on its rank, times a factor."""
        return grad * factor


def _digest(values: np.ndarray) -> int:
    """Returns a checksum of a gradient: of all its bits, or if it is large of some elements and the sum of all."""
    if values.size <= _MOST_ELEMENTS:
        return same_values.checksum_of(values)
    some = values.reshape(-1)[::values.size // _MOST_ELEMENTS]
    return same_values.checksum_of(some) ^ same_values.checksum_of(np.sum(values))


def _other_gradients(difference: str) -> ValueError:
    return ValueError(f"DistributedOptimizer: the ranks apply gradients to different variables: {difference}; after "
                      "_compute_gradients() or _aggregate_gradients(), apply gradients of the same variables on all "
                      "ranks")
