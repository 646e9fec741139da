"""What the gradients of all backends have in common; see Reduction.gradients.

Thread contract: as Reduction's.
"""

from collections.abc import Sequence
from typing import Any, Callable


class BackendGradients:
    """Reduces the gradients of one optimizer; a class for each backend."""

    def complete(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
                 variables: Sequence[Any]) -> list[Any]:
        """The gradients, with zeros in place of those that only other ranks have.

        On JAX all ranks have the same ones: it gives zeros itself.
        """
        return list(grads)

    def owns(self, grads: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether these gradients may be overwritten."""
        return False

    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        """The reduced gradients.

        indices: for the operations' names. own: `grads` may be overwritten. postscale: instead of
        the reduction's.
        """
        raise NotImplementedError

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        """The smallest of the ranks' values, a boolean scalar."""
        raise NotImplementedError

    def accumulated(self, optimizer: Any, reduce: Callable[[list[Any]], list[Any]],
                    grads: list[Any]) -> list[Any]:
        """reduce(grads), in those passes in which the optimizer steps.

        The optimizer calls it where it clips the sum of its gradients.
        """
        return reduce(grads)

    def computed(self, loss: Any, variables: Any, grad_loss: Any, tape: Any) -> list[Any]:
        """(gradient, variable) pairs of this rank; see _compute_gradients() in keras3.py."""
        raise NotImplementedError("_compute_gradients() needs Keras' TensorFlow backend, which has "
                                  "a gradient tape; compute them as this backend does, and pass "
                                  "them to apply(), which reduces them")

    def place(self) -> Any:
        """The graph that is being made; None if there is none."""
        return None

    def scaled(self, grad: Any, factor: float) -> Any:
        """A gradient that stays on its rank, times a factor."""
        return grad * factor
