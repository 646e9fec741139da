"""Detects whether a program has changed gradients since a given moment.

    seen = Gradients()
    seen.take(parameter)      # for each of them
    seen.changed(parameter)

It remembers two sums of the values. A tensor's version would prove nothing,
because .grad.data has a version of its own.

Thread contract: one thread at a time.
"""

from typing import Optional

import torch

from maypole.torch._gradients.guards import grad_of


def is_clear(grad: Optional[torch.Tensor]) -> bool:
    """Whether `grad` is None or has only zeros."""
    return grad is None or not _values(grad).bool().any()


def _values(grad: torch.Tensor) -> torch.Tensor:
    return (grad.coalesce().values() if grad.is_sparse else grad).detach()


class Gradients(dict[torch.Tensor, Optional[list[torch.Tensor]]]):
    """See the head of this file."""

    def take(self, parameter: torch.Tensor) -> None:
        """Records the gradient's present values."""
        self[parameter] = _sums(parameter)

    def changed(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient has changed; None counts as a value."""
        old, new = self[parameter], _sums(parameter)
        if old is None or new is None:
            return old is not new
        # Here a NaN equals itself.
        return not all(bool((x == y) | ((x != x) & (y != y)))
                       for x, y in zip(old, new))


def _sums(parameter: torch.Tensor) -> Optional[list[torch.Tensor]]:
    grad = grad_of(parameter)
    if grad is None:
        return None
    values = _values(grad)
    return [values.sum(), values.abs().sum()]
