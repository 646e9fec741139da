"""Compresses, reduces and stores single gradients for DistributedOptimizer.

Thread contract: start(), start_dense(), start_bucket() and the functions that they return: any
thread, one at a time for a parameter. The others: one thread at a time.
"""

from typing import Any, Callable, Optional

import torch

from maypole.common.constants import ReduceOp
from maypole.torch._gradients.buckets import Bucket
from maypole.torch._gradients.guards import check_no_graph, grad_of, set_grad
from maypole.torch._gradients.layouts import Layouts, Order
from maypole.torch.async_ops import allreduce_async, reduce_gradient, synchronize
from maypole.torch.compression import compressor_of, wire_dtype
from maypole.torch.sparse import sparse_allreduce_async


class Reducer:
    """Reduces gradients: starts a reduction, returns a function that ends it."""

    def __init__(self, compression: Any, op: ReduceOp, predivide: float,
                 sparse_as_dense: bool, stays_sparse: bool, process_set: Any):
        self.compression = compression
        self.process_set = process_set
        self.op = op
        # An average is a sum divided by size; these factors move part of that division before the sum.
        self.prescale = 1.0 / predivide
        self.postscale = predivide
        self.sparse_as_dense = sparse_as_dense
        # Whether a sparse gradient that was reduced as a dense one becomes
        # sparse again.
        self.stays_sparse = stays_sparse
        self.layouts = Layouts(process_set)
        # By name: the tensor that is being reduced, and its version at the start.
        self._versions: dict[str, tuple[torch.Tensor, int]] = {}
        # Whether the compression has state, as PowerSGD has: then a tensor must keep its shape.
        self.has_state = hasattr(compression, "reset")

    def order_of(self, parameter: torch.Tensor) -> Optional[Order]:
        """The memory order of this dense gradient's dimensions on all ranks.

        None if it is the dimensions' own order.
        """
        return None if self.has_state else self.layouts.order_of(parameter)

    def fits_bucket(self, parameter: torch.Tensor) -> bool:
        """Whether all ranks can put this gradient into a bucket in the same way."""
        grad = parameter.grad
        return (grad.layout is torch.strided and grad.numel() > 0
                and self.layouts.is_ordered(parameter))

    def forget(self) -> None:
        """Forgets what ranks may remember differently after an error."""
        self.layouts.forget()
        if self.has_state:
            self.compression.reset()

    def reduced_loss(self, loss: Any, name: str) -> Any:
        """Returns the ranks' losses, reduced like their gradients."""
        if not isinstance(loss, torch.Tensor):
            loss = torch.tensor(float(loss), device="cpu")
        return synchronize(
            allreduce_async(loss.detach(), None, name, self.op,
                            process_set=self.process_set))

    def start(self, parameter: torch.Tensor, name: str) -> Callable[[], None]:
        """Starts reducing parameter.grad.

        Returns a function that waits for the result and stores it there.
        """
        if self.layouts.lacks_gradient(parameter):
            # Another rank may have used this parameter.
            set_grad(parameter, self.layouts.zeros(parameter))
        grad = grad_of(parameter)
        if grad.is_sparse:
            if not self.sparse_as_dense:
                return self._start_sparse(parameter, name)
            return self._start_as_dense(parameter, name)
        check_no_graph(grad, name)
        return self._start_ordered(parameter, grad, name)

    def start_zeros(self, parameter: torch.Tensor, name: str) -> Callable[[], None]:
        """As start(), with zeros in place of a dense gradient that cannot be reduced; stores nothing."""
        return self._start_ordered(parameter, self.layouts.zeros(parameter), name)

    def _start_ordered(self, parameter: torch.Tensor, grad: torch.Tensor,
                       name: str) -> Callable[[], None]:
        order = self.order_of(parameter)
        return self.start_dense(grad if order is None else grad.permute(order),
                                name)

    def changed(self) -> Optional[AssertionError]:
        """Returns an error if the program has changed a gradient while it was being reduced."""
        for name, (tensor, version) in self._versions.items():
            if tensor._version != version:
                return AssertionError(
                    f"the gradient of {name!r} was changed while it was "
                    "reduced; call optimizer.synchronize() before you change "
                    "gradients through tensors that were .grad before")
        return None

    def _watch(self, name: str, tensor: torch.Tensor) -> None:
        # Views of one memory share a version, and the other views may still be computed.
        if not tensor._is_view():
            self._versions[name] = tensor, tensor._version

    def start_dense(self, tensor: torch.Tensor,
                    name: str) -> Callable[[], None]:
        """Starts reducing `tensor` in place; returns a function that waits."""
        compressor = compressor_of(self.compression, name)
        small, ctx = compressor.compress(tensor)
        handle = reduce_gradient(small, name, self.op, self.prescale,
                                 self.postscale, self.process_set)
        self._watch(name, tensor)

        def finish() -> None:
            self._versions.pop(name, None)
            result = compressor.decompress(synchronize(handle), ctx)
            if result is not tensor:
                with torch.no_grad():
                    tensor.copy_(result)

        return finish

    def start_bucket(self, bucket: Bucket, name: str) -> Callable[[], None]:
        """As start_dense(), for a bucket.

        A compression that casts writes to memory that is reduced in place, like the bucket's own.
        """
        wire = wire_dtype(self.compression, bucket.buffer.dtype)
        if wire is None:
            return self.start_dense(bucket.buffer, name)
        small = bucket.wire(wire)
        small.copy_(bucket.buffer)
        handle = reduce_gradient(small, name, self.op, self.prescale,
                                 self.postscale, self.process_set)
        self._watch(name, bucket.buffer)

        def finish() -> None:
            self._versions.pop(name, None)
            result = synchronize(handle)
            with torch.no_grad():
                bucket.buffer.copy_(result)

        return finish

    def _start_as_dense(self, parameter: torch.Tensor,
                        name: str) -> Callable[[], None]:
        """Reduces a sparse gradient as a dense one."""
        grad = grad_of(parameter)
        sparse_dims = grad.sparse_dim()
        self.layouts.note(parameter, sparse_dims)
        dense = grad.to_dense()
        set_grad(parameter, dense)
        wait = self.start_dense(dense, name)
        if not self.stays_sparse:
            return wait

        def finish() -> None:
            wait()
            # The optimizer may expect sparse gradients.
            set_grad(parameter, _usable(dense.to_sparse(sparse_dims)))

        return finish

    def _start_sparse(self, parameter: torch.Tensor,
                      name: str) -> Callable[[], None]:
        wait = sparse_allreduce_async(grad_of(parameter), name, self.op,
                                      self.process_set)

        def finish() -> None:
            result = wait()
            # On a GPU, rows that occur twice would be added in any order, which each rank rounds in its own way.
            set_grad(parameter, _usable(result.coalesce() if result.is_cuda else result))

        return finish


def _usable(sparse: torch.Tensor) -> torch.Tensor:
    """Returns `sparse`; one without entries in the form that zero_grad() gives it.

    All dimensions of that form are sparse: SparseAdam of older torch cannot take any other.
    """
    if sparse._nnz() > 0:
        return sparse
    indices = torch.zeros(sparse.dim(), 0, dtype=torch.int64, device=sparse.device)
    return torch.sparse_coo_tensor(indices, torch.zeros(0, dtype=sparse.dtype, device=sparse.device),
                                   sparse.shape)
