"""Which gradients are sparse, as all ranks know it.

A rank whose step did not compute a parameter's gradient contributes zeros; but
it must know whether the other ranks reduce that gradient as a dense or as a
sparse tensor. The ranks tell each other once: while there are parameters whose
gradient no rank has had so far, each step has one small allreduce about them.

Thread contract: one thread at a time. Invariant: `_known` is equal on all ranks,
because it comes from these allreduces only.
"""

from typing import Any, Dict, Sequence

import torch

from maypole.common.constants import Max
from maypole.torch.async_ops import allreduce_async_, synchronize

_NO_GRADIENT = 0
_DENSE = 1  # sparse: 1 + the number of sparse dimensions


class Layouts:
    """See the head of this file."""

    def __init__(self) -> None:
        self._known: Dict[torch.Tensor, int] = {}
        self._noted: Dict[torch.Tensor, int] = {}

    def note(self, parameter: torch.Tensor, sparse_dims: int) -> None:
        """Notes that this rank's gradient was sparse before it was replaced by
        a dense one."""
        if parameter not in self._known:
            self._noted[parameter] = _DENSE + sparse_dims

    def _own(self, parameter: torch.Tensor) -> int:
        grad = parameter.grad
        if grad is None:
            return _NO_GRADIENT
        if grad.is_sparse:
            return _DENSE + grad.sparse_dim()
        return self._noted.get(parameter, _DENSE)

    def learn(self, parameters: Sequence[torch.Tensor], name: str,
              process_set: Any) -> None:
        """Asks the ranks about those parameters whose layout is not known.

        parameters: the same on all ranks.
        """
        unknown = [p for p in parameters if p not in self._known]
        if not unknown:
            return
        codes = torch.tensor([self._own(p) for p in unknown], dtype=torch.uint8,
                             device="cpu")
        handle = allreduce_async_(codes, None, name, Max,
                                  process_set=process_set)
        for parameter, code in zip(unknown, synchronize(handle).tolist()):
            if code != _NO_GRADIENT:
                self._known[parameter] = code
        self._noted.clear()

    def is_known(self, parameter: torch.Tensor) -> bool:
        """Whether some rank has had a gradient of this parameter."""
        return parameter in self._known

    def lacks_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether zeros() should take the place of the gradient.

        zero_grad() makes a sparse gradient one without entries, whose
        dimensions are all sparse.
        """
        grad = parameter.grad
        return grad is None or (parameter in self._known and grad.is_sparse
                                and grad._nnz() == 0)

    def sparse_dims(self, parameter: torch.Tensor) -> int:
        """How many sparse dimensions the gradient has on all ranks; 0: it is
        dense, or not known."""
        return self._known.get(parameter, _DENSE) - _DENSE

    def zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """A gradient of zeros, in the layout of the other ranks' gradients."""
        sparse_dims = self.sparse_dims(parameter)
        if sparse_dims == 0:
            return torch.zeros_like(parameter)
        indices = torch.zeros(sparse_dims, 0, dtype=torch.int64,
                              device=parameter.device)
        values = parameter.new_zeros((0,) + tuple(parameter.shape[sparse_dims:]))
        return torch.sparse_coo_tensor(indices, values, parameter.shape)

    def forget(self) -> None:
        """After an error, when the ranks may know different things."""
        self._known.clear()
        self._noted.clear()
