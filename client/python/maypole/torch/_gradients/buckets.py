"""Gradient buckets: the gradients of several parameters in one flat tensor.

    buckets = Buckets(cap_bytes)
    buckets.add(parameters, names)   # their gradients move into buckets
    bucket = buckets.of(parameter)
    bucket.gather()                  # in case the user has replaced .grad
    ... reduce bucket.buffer in place ...

A bucket holds as many gradients of one dtype and device as fit into the cap,
each at a multiple of 64 bytes (a gradient larger than the cap has its own
bucket). Buckets are filled from the last parameter to the first, the order in
which backward() computes gradients. The layout depends only on shapes, dtypes,
devices and order, so it is the same on all ranks if they order the parameters
alike. Buckets are in the memory that arena.py describes, as long as it has
room.

Thread contract: one thread at a time.

Invariants: between add() and drop(), after each gather() or zero(), .grad of
each parameter that requires a gradient is its view of the buffer; later the
user may replace it. Bytes between the gradients are zero.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import torch

from maypole.torch import _tensors, arena
from maypole.torch._gradients.guards import check_no_graph, grad_of, set_grad
from maypole.torch._gradients.layouts import Order

_ALIGNMENT = 64


class _Place:
    """A parameter's place in a buffer."""

    __slots__ = ("parameter", "offset", "order", "_buffer", "_view", "address")

    def __init__(self, parameter: torch.Tensor, buffer: torch.Tensor,
                 offset: int, order: Optional[Order]):
        self.parameter = parameter
        self.offset = offset
        self.order = order
        self._buffer = buffer
        self._view = self._new_view()
        self.address = self._view.data_ptr()

    def _new_view(self) -> torch.Tensor:
        shape = self.parameter.shape
        flat = self._buffer.narrow(0, self.offset, self.parameter.numel())
        if self.order is None:
            return flat.view(shape)
        in_memory = flat.view([shape[dim] for dim in self.order])
        return in_memory.permute(
            sorted(range(len(shape)), key=self.order.__getitem__))

    def view(self) -> torch.Tensor:
        """Returns the gradient's view of the buffer."""
        # The user has this view as .grad, and may have set .grad.data.
        if self._view.data_ptr() != self.address:
            self._view = self._new_view()
        return self._view


class Bucket:
    """A flat buffer and the parameters whose gradients it holds.

    missing: the number of gradients not computed yet in this step, among the
    parameters that required one when the step began.

    Invariant: gather() orders the buffer's current stream after the streams on
    which gradients were computed; a model may use several.
    """

    def __init__(self, name: str, parameters: Sequence[torch.Tensor],
                 offsets: Sequence[int], count: int,
                 order_of: Callable[[torch.Tensor], Optional[Order]]):
        self.name = name
        like = _gradient_like(parameters[0])
        self.buffer = arena.zeros_flat(count, like.dtype, like.device)
        self.missing = len(parameters)
        self._wire: Optional[torch.Tensor] = None
        self._streams: set[Optional[int]] = set()
        self._places = [
            _Place(parameter, self.buffer, offset, order_of(parameter))
            for parameter, offset in zip(parameters, offsets)
        ]

    def wire(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns memory of the same kind for the buffer's values in another dtype.

        Its content is what the last user has left there.
        """
        if self._wire is None or self._wire.dtype != dtype:
            self._wire = arena.zeros_flat(self.buffer.numel(), dtype,
                                          self.buffer.device)
        return self._wire

    def layout(self, names: dict[torch.Tensor, str]) -> Any:
        """Returns what must be equal on all ranks; values with equal repr() are equal."""
        return [(names.get(place.parameter), place.offset, place.order)
                for place in self._places]

    def adopt(self) -> None:
        """Moves the gradients of all parameters into the buffer."""
        with torch.no_grad():
            for place in self._places:
                view = place.view()
                view.copy_(grad_of(place.parameter))
                set_grad(place.parameter, view)

    def computed(self) -> None:
        """Notes that a gradient has been computed, on the current stream."""
        self.missing -= 1
        self._streams.add(_tensors.stream_of(self.buffer))

    def _wait_for_gradients(self) -> None:
        self._streams.discard(_tensors.stream_of(self.buffer))
        while self._streams:
            stream = self._streams.pop()
            assert stream is not None  # all are of CUDA, or all are None
            _tensors.wait_for_stream(self.buffer, stream)

    def gather(self) -> None:
        """Copies gradients that are outside the buffer into it, and counts them.

        A gradient that is None becomes zeros. Raises AssertionError if a gradient is part of a graph.
        """
        self._wait_for_gradients()
        for place in self._places:
            grad = grad_of(place.parameter)
            if (grad is None or grad.is_sparse
                    or grad.data_ptr() != place.address):
                self._bring(place)

    def _bring(self, place: _Place) -> None:
        grad = grad_of(place.parameter)
        if grad is not None:
            check_no_graph(grad, self.name)
        view = place.view()
        if grad is None:
            # Not computed in this step; the view holds an earlier gradient.
            view.zero_()
        else:
            view.copy_(grad.to_dense() if grad.is_sparse else grad)
            arena.note_fallback(
                "gradient_replaced",
                f"a gradient of {self.name!r} was found outside of the bucket "
                "and copied into it; call zero_grad() of the "
                "DistributedOptimizer, not the model's, and do not replace "
                ".grad")
        if place.parameter.requires_grad:
            self._put(place, view)

    def _put(self, place: _Place, view: torch.Tensor) -> None:
        try:
            set_grad(place.parameter, view)
        except RuntimeError as error:
            raise ValueError(
                f"a parameter of {self.name!r} has another dtype, shape or device "
                "than when its gradient was placed in the bucket (is now "
                f"{place.parameter.dtype}, {list(place.parameter.shape)}, "
                f"{place.parameter.device}); cast and move a model before "
                f"DistributedOptimizer is made: {error}") from None

    def detach(self) -> None:
        """Sets .grad to None for all parameters that require a gradient."""
        for place in self._places:
            if place.parameter.requires_grad:
                set_grad(place.parameter, None)

    def zero(self) -> None:
        """Zeros the buffer and sets .grad to its views again."""
        self.buffer.zero_()
        for place in self._places:
            if place.parameter.requires_grad:
                self._put(place, place.view())

    def reset(self) -> None:
        """Begins another step, in which all gradients are missing."""
        self.missing = sum(place.parameter.requires_grad
                           for place in self._places)

    def active(self) -> bool:
        """Whether any of the parameters requires a gradient now."""
        return any(place.parameter.requires_grad for place in self._places)


class Buckets:
    """The buckets of one optimizer."""

    def __init__(self, cap_bytes: int):
        self._cap_bytes = cap_bytes
        self._buckets: list[Bucket] = []
        self._of: dict[torch.Tensor, Bucket] = {}

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def of(self, parameter: torch.Tensor) -> Optional[Bucket]:
        """The bucket with this parameter's gradient."""
        return self._of.get(parameter)

    def add(
        self,
        parameters: Sequence[torch.Tensor],
        names: dict[torch.Tensor, str],
        order_of: Callable[[torch.Tensor], Optional[Order]] = lambda _: None
    ) -> None:
        """Makes buckets for `parameters`, which have dense gradients.

        order_of: returns the order of a gradient's dimensions in memory; None: their own order.
        """
        for members, offsets, count in _layout(parameters, self._cap_bytes):
            # Named after its first parameter, which no other bucket has.
            bucket = Bucket(f"{names[members[0]]}.bucket", members, offsets,
                            count, order_of)
            bucket.adopt()
            self._buckets.append(bucket)
            for parameter in members:
                self._of[parameter] = bucket

    def drop(self) -> None:
        """Forgets all buckets. Gradients stay where they are."""
        self._buckets.clear()
        self._of.clear()

    def detach(self) -> None:
        """Sets .grad to None for all parameters that require a gradient.

        Then the optimizer's own zero_grad() does not touch the gradients; the caller calls zero() after it.
        """
        for bucket in self._buckets:
            bucket.detach()

    def zero(self) -> None:
        """Zeros all gradients in place and sets .grad to the views again."""
        for bucket in self._buckets:
            bucket.zero()


def _gradient_like(parameter: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that has the gradient's dtype and device."""
    grad = grad_of(parameter)
    return parameter if grad is None else grad


def _layout(
    parameters: Sequence[torch.Tensor], cap_bytes: int
) -> Iterable[tuple[list[torch.Tensor], list[int], int]]:
    """Yields (parameters, their offsets, length) of each bucket, in elements."""
    open_buckets: dict[Any, tuple[list[torch.Tensor], list[int]]] = {}
    ends: dict[Any, int] = {}
    for parameter in reversed(parameters):
        like = _gradient_like(parameter)
        key = (like.dtype, like.device)
        size = like.element_size()
        align = _ALIGNMENT // size
        length = -(-parameter.numel() // align) * align
        end = ends.get(key, 0)
        if key in open_buckets and (end + length) * size > cap_bytes:
            yield (*open_buckets.pop(key), end)
            end = 0
        members, offsets = open_buckets.setdefault(key, ([], []))
        members.append(parameter)
        offsets.append(end)
        ends[key] = end + length
    for key, (members, offsets) in open_buckets.items():
        yield members, offsets, ends[key]
