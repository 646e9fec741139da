"""Whether a program has changed gradients since a moment.

    seen = Gradients()
    seen.take(parameter)      # for each of them
    seen.changed(parameter)

What is remembered are two sums of the values: the version of a tensor proves
nothing, because .grad.data has another one.

Thread contract: one thread at a time.
"""

from typing import Optional

import torch

from maypole.torch._gradients.guards import grad_of


def is_clear(grad: Optional[torch.Tensor]) -> bool:
    """Whether it is None or has zeros only."""
    return grad is None or not _values(grad).bool().any()


def _values(grad: torch.Tensor) -> torch.Tensor:
    return (grad.coalesce().values() if grad.is_sparse else grad).detach()


class Gradients(dict[torch.Tensor, Optional[list[torch.Tensor]]]):
    """See the head of this file."""

    def take(self, parameter: torch.Tensor) -> None:
        """Remembers the gradient as it is now."""
        self[parameter] = _sums(parameter)

    def changed(self, parameter: torch.Tensor) -> bool:
        """Whether it is another one now; also if there was, or is, none."""
        old, new = self[parameter], _sums(parameter)
        if old is None or new is None:
            return old is not new
        # A NaN is equal to itself here.
        return not all(bool((x == y) | ((x != x) & (y != y)))
                       for x, y in zip(old, new))


def _sums(parameter: torch.Tensor) -> Optional[list[torch.Tensor]]:
    grad = grad_of(parameter)
    if grad is None:
        return None
    values = _values(grad)
    return [values.sum(), values.abs().sum()]
