"""Reduces sparse tensors by gathering them."""

import contextlib
from typing import Callable, Optional

import torch

from maypole.common.constants import OP_NAMES, Average, ReduceOp, Sum
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.torch._compiling import not_compiled
from maypole.torch.async_ops import allgather_async, synchronize


@not_compiled
def sparse_allreduce_async(
        tensor: torch.Tensor,
        name: Optional[str],
        op: ReduceOp,
        process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts reducing a sparse COO tensor; returns a function, not a handle.

    The function waits and returns the sparse result (not coalesced: indices may repeat). It is gathered with
    two operations, `<name>.indices` and `<name>.values`; the number of entries may differ between ranks.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average or Sum, else ValueError.
        process_set: the ranks that take part; all of them must make the call.
    """
    if op not in (Average, Sum):
        raise ValueError(f"sparse_allreduce_async of {name!r}: op={OP_NAMES.get(op, op)}, "
                         "expected Average or Sum")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async of {name!r}: layout is "
                         f"{tensor.layout}, expected torch.sparse_coo")
    tensor = tensor if tensor.is_coalesced() else tensor.coalesce()
    # One entry per row, because allgather concatenates rows.
    indices = allgather_async(tensor.indices().t().contiguous(),
                              None if name is None else f"{name}.indices",
                              process_set)
    values = allgather_async(tensor.values(),
                             None if name is None else f"{name}.values",
                             process_set)
    shape = tensor.shape

    def finish() -> torch.Tensor:
        try:
            all_indices = synchronize(indices).t()
        except RuntimeError:
            # Also ends the other operation, so that its name can be used again.
            with contextlib.suppress(RuntimeError):
                synchronize(values)
            raise
        all_values = synchronize(values)
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices, all_values, shape, device=all_values.device)

    return finish
