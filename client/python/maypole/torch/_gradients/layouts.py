"""What all ranks know about the gradients: which are sparse, and the memory order of the dense ones.

A rank whose step did not compute a parameter's gradient contributes zeros, but
it must know whether the other ranks reduce that gradient as a dense or as a
sparse tensor. A dense gradient that is not contiguous (channels_last) is reduced
in place if its dimensions have the same order in memory on all ranks. The ranks
exchange this once per parameter: as long as there are parameters whose gradient
no rank has had so far, each step has one small allreduce about them. The
allreduce also carries why each rank waits for its gradients; once a rank has
read gradients without synchronize(), every step has this allreduce.

Thread contract: one thread at a time. Invariant: `_known`, `_orders` and `_places`
are equal on all ranks, because they come from these allreduces only.
"""

from collections.abc import Container, Sequence
from typing import Any, Optional

import torch

from maypole.common.constants import Max
from maypole.torch._gradients.guards import grad_of
from maypole.torch.async_ops import allreduce_async_, synchronize

_NO_GRADIENT = 0
_DENSE = 1  # sparse: 1 + the number of sparse dimensions

# The dimensions of a tensor, from the outermost in memory to the innermost.
Order = tuple[int, ...]

# Less than the number of any order: sent by a rank without a dense gradient.
_NO_ORDER = -(1 << 62)
_NO_DENSE_ORDER = -1  # its elements overlap or have gaps


def order_in_memory(tensor: torch.Tensor) -> Optional[Order]:
    """Returns the order of the dimensions in memory; None if the elements overlap or have gaps."""
    dims = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return dims
    # Dimensions of length 1 may be anywhere.
    order = sorted(dims, key=lambda d: (tensor.shape[d] == 1,
                                        -tensor.stride(d), d))
    return tuple(order) if tensor.permute(order).is_contiguous() else None


def _number_of(order: Optional[Order]) -> int:
    if order is None:
        return _NO_DENSE_ORDER
    number = 0
    for dim in order:
        number = number * len(order) + dim
    return number


def _order_of(number: int, dims: int) -> Order:
    order: list[int] = []
    for _ in range(dims):
        number, dim = divmod(number, dims)
        order.insert(0, dim)
    return tuple(order)


class Layouts:
    """See the head of this file."""

    def __init__(self, process_set: Any) -> None:
        self._process_set = process_set
        self._known: dict[torch.Tensor, int] = {}
        self._noted: dict[torch.Tensor, int] = {}
        # Of dense gradients that are not contiguous; since settle().
        self._orders: dict[torch.Tensor, Order] = {}
        self._learned_orders: dict[torch.Tensor, Order] = {}
        # Dense gradients whose order differs between ranks, or that have gaps.
        self._unordered: dict[torch.Tensor, bool] = {}
        # The codes of this rank's sparse gradients, also after forget(): zero_grad() leaves nothing of them.
        self._last_sparse: dict[torch.Tensor, int] = {}
        # The last position that a parameter has in any rank's optimizer.
        self._places: dict[torch.Tensor, int] = {}
        # Whether any rank has waited because its program read gradients.
        self.reads = False

    def note(self, parameter: torch.Tensor, sparse_dims: int) -> None:
        """Records that this rank's gradient was sparse before a dense one replaced it."""
        if parameter not in self._known:
            self._noted[parameter] = _DENSE + sparse_dims

    def _own(self, parameter: torch.Tensor,
             computed: bool) -> tuple[int, int, int]:
        """Returns (code, number of the order, its negative)."""
        grad = grad_of(parameter)
        if grad is None:
            return _NO_GRADIENT, _NO_ORDER, _NO_ORDER
        if grad.is_sparse and not computed and grad._nnz() == 0:
            # See lacks_gradient().
            return (self._last_sparse.get(parameter, _NO_GRADIENT), _NO_ORDER,
                    _NO_ORDER)
        if grad.is_sparse:
            return _DENSE + grad.sparse_dim(), _NO_ORDER, _NO_ORDER
        number = _number_of(order_in_memory(grad))
        return self._noted.get(parameter, _DENSE), number, -number

    def learn(self, parameters: Sequence[torch.Tensor], name: str, computed: Container[torch.Tensor], reads: bool,
              unaware: bool, own_order: Sequence[torch.Tensor] = ()) -> bool:
        """Exchanges with all ranks the layouts of the parameters whose layout is not known.

        parameters: the same on all ranks. own_order: the same parameters in the
        order of this rank's optimizer; see place_of(). computed: those whose
        gradient backward() has computed in this step. reads: whether this rank
        waits because its program read gradients. unaware: whether it could not
        have noticed that.

        Returns whether some rank reads and some rank is unaware, or may be: it
        is not asked if no rank has read before.
        """
        unknown = [p for p in parameters if p not in self._known]
        if not unknown and not self.reads:
            return reads
        places = {p: i for i, p in enumerate(own_order)}
        own = torch.tensor([(*self._own(p, p in computed), places.get(p, 0))
                            for p in unknown] + [(reads, unaware, 0, 0)],
                           dtype=torch.int64, device="cpu")
        handle = allreduce_async_(own, None, name, Max, process_set=self._process_set)
        *layouts, (some_reads, some_unaware, *_) = synchronize(handle).tolist()
        self.reads = self.reads or some_reads > 0
        for parameter, (code, number, negative, place) in zip(unknown, layouts):
            if code == _NO_GRADIENT:
                continue
            self._known[parameter] = code
            self._places[parameter] = place
            if code > _DENSE:
                self._last_sparse[parameter] = code
            if number != -negative or number == _NO_DENSE_ORDER:
                self._unordered[parameter] = True
            elif number != _NO_ORDER:
                order = _order_of(number, parameter.dim())
                if order != tuple(range(parameter.dim())):
                    self._learned_orders[parameter] = order
        self._noted.clear()
        return some_reads > 0 and some_unaware > 0

    def settle(self) -> None:
        """Ends a step: the orders learned in it take effect.

        Not in the step itself, in which ranks have begun to reduce these gradients without them.
        """
        if self._learned_orders:
            self._orders.update(self._learned_orders)
            self._learned_orders.clear()

    def is_known(self, parameter: torch.Tensor) -> bool:
        """Whether some rank has had a gradient of this parameter."""
        return parameter in self._known

    def order_of(self, parameter: torch.Tensor) -> Optional[Order]:
        """The memory order of this gradient on all ranks; None if it is unknown or that of the dimensions."""
        return self._orders.get(parameter) if self._orders else None

    def place_of(self, parameter: torch.Tensor) -> int:
        """A sort key of known parameters: the ranks' own order where it is the same; several may have one key."""
        return self._places[parameter]

    def is_ordered(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient is known, dense, and in the same memory order on all ranks."""
        return parameter in self._known and parameter not in self._unordered

    def knowledge(self, names: dict[torch.Tensor, str]) -> Any:
        """Returns everything known, in a form whose repr() is equal on ranks that know the same."""
        return self.reads, sorted(
            (names[p], code, self._orders.get(p), p in self._unordered)
            for p, code in self._known.items() if p in names)

    def lacks_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether zeros() should replace the gradient.

        zero_grad() turns a sparse gradient into one without entries, all of whose dimensions are sparse.
        """
        grad = grad_of(parameter)
        return grad is None or (grad.is_sparse and parameter in self._known
                                and grad._nnz() == 0)

    def sparse_dims(self, parameter: torch.Tensor) -> int:
        """The number of sparse dimensions of the gradient on all ranks; 0: it is dense, or not known."""
        return self._known.get(parameter, _DENSE) - _DENSE

    def zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """A gradient of zeros, in the layout of the other ranks' gradients."""
        sparse_dims = self.sparse_dims(parameter)
        if sparse_dims == 0:
            return torch.zeros_like(
                parameter,
                dtype=getattr(parameter, "grad_dtype", None) or parameter.dtype)
        indices = torch.zeros(sparse_dims, 0, dtype=torch.int64,
                              device=parameter.device)
        values = parameter.new_zeros((0,) + tuple(parameter.shape[sparse_dims:]))
        return torch.sparse_coo_tensor(indices, values, parameter.shape)

    def forget(self) -> None:
        """Forgets everything, after an error: the ranks may know different things."""
        for known in (self._known, self._noted, self._orders,
                      self._learned_orders, self._unordered, self._places):
            known.clear()
        self.reads = False
