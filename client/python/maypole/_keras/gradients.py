"""The base of the backends' classes for gradients; see Reduction.gradients.

Thread contract: as Reduction's.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Callable


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

    def held(self, model: Any, state: Any) -> dict[int, Any]:
        """Returns, by the id() of a variable, the values that a model's fit() holds itself. state: its `state`."""
        return {}

    def place(self) -> Any:
        """Returns the graph that is being made; None if there is none."""
        return None

    def scaled(self, grad: Any, factor: float) -> Any:
        """Returns a gradient that stays on its rank, times a factor."""
        return grad * factor
