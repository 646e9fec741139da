"""Broadcasting models, optimizers and Python objects.

All ranks must call these, with the same names. Thread contract: one thread at a
time, because the names are fixed. Errors are those of async_ops and
synchronize().
"""

import ctypes
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

from maypole.common import basics, objects
from maypole.common.exceptions import HorovodInternalError
from maypole.common.process_sets import global_process_set
from maypole.torch._structures import (put_back, specs_of, take_out,
                                        tensors_for)
from maypole.torch._compiling import not_compiled
from maypole.torch._tensors import shares_memory
from maypole.torch.async_ops import (allgather_async, broadcast_async_,
                                     synchronize)


@not_compiled
def broadcast_parameters(params: Union[Dict[str, Any], Iterable[Any]],
                         root_rank: int) -> None:
    """Overwrites `params` on all ranks by those of rank `root_rank`, in place.

    params: a dict such as model.state_dict(), or a list of tensors or of
    (name, tensor) such as model.named_parameters(). A tensor may also be an
    array that async_ops accepts. Entries that are None are skipped; any other
    entry raises ValueError. A tensor must be on the CPU on all ranks, or on a
    CUDA device on all ranks.
    """
    handles = []
    try:
        for name, tensor in _named(params):
            if tensor is not None:
                handles.append(broadcast_async_(tensor, root_rank, name))
    finally:
        # Even if one was refused, so that no pending operation writes later.
        _synchronize_all(handles)


def _named(params: Any) -> List[Tuple[Optional[str], Any]]:
    if isinstance(params, dict):
        entries = sorted(params.items())
    elif shares_memory(params) or not hasattr(params, "__iter__"):
        raise ValueError("broadcast_parameters: expected a dict, a list of "
                         "tensors or a list of (name, tensor), got "
                         f"{type(params).__name__}")
    else:
        entries = [
            entry if isinstance(entry, tuple) else (None, entry)
            for entry in params
        ]
    for name, tensor in entries:
        if tensor is not None and not shares_memory(tensor):
            raise ValueError(f"broadcast_parameters: {name!r} is a "
                             f"{type(tensor).__name__}, expected a tensor; "
                             "use broadcast_object for it")
    return entries


def _synchronize_all(handles: List[int]) -> None:
    first_error = None
    for handle in handles:
        try:
            synchronize(handle)
        except HorovodInternalError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer,
                              root_rank: int,
                              model: Optional[torch.nn.Module] = None) -> None:
    """Overwrites the optimizer's state on all ranks by rank `root_rank`'s.

    Afterwards state and options (learning rate, ...) are the root's. State that
    is on a CUDA device on the root is on one here, too; then all ranks need
    one. The optimizer is not stepped, so one without state stays without.
    `model` is not needed and is accepted for compatibility. Raises ValueError
    for LBFGS, because its ranks would evaluate different closures.
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of torch.optim.LBFGS")
    is_root = basics.rank() == root_rank
    tensors: List[torch.Tensor] = []
    skeleton = None
    if is_root:
        skeleton = take_out(optimizer.state_dict(), tensors)
    skeleton = broadcast_object(skeleton, root_rank,
                                "broadcast_optimizer_state")
    if not is_root:
        tensors = tensors_for(specs_of(skeleton), optimizer)
    broadcast_parameters([(f"broadcast_optimizer_state.{i}", tensor)
                          for i, tensor in enumerate(tensors)], root_rank)
    if not is_root:
        optimizer.load_state_dict(put_back(skeleton, tensors))


@not_compiled
def broadcast_object(obj: Any,
                     root_rank: int = 0,
                     name: Optional[str] = None,
                     process_set: Any = global_process_set) -> Any:
    """Returns rank `root_rank`'s `obj` on all ranks; others' are ignored.

    root_rank: a rank of the job (not an index in the process set); it must be
    in the set. The object is pickled (by cloudpickle if it is installed). name:
    needed if several threads call this at once.
    """
    name = name or "broadcast_object"
    is_root = basics.rank() == root_rank
    length = torch.zeros(1, dtype=torch.int64, device="cpu")
    if is_root:
        data = torch.frombuffer(objects.dumps(obj), dtype=torch.uint8)
        length[0] = data.numel()
    synchronize(
        broadcast_async_(length, root_rank, f"{name}.size", process_set))
    if not is_root:
        data = torch.empty(int(length.item()), dtype=torch.uint8, device="cpu")
    synchronize(broadcast_async_(data, root_rank, f"{name}.data", process_set))
    return obj if is_root else objects.loads(_bytes(data))


@not_compiled
def allgather_object(obj: Any,
                     name: Optional[str] = None,
                     process_set: Any = global_process_set) -> List[Any]:
    """Returns the list of all ranks' `obj`s, in rank order.

    The objects are pickled (by cloudpickle if it is installed). name: needed
    if several threads call this at once.
    """
    name = name or "allgather_object"
    data = torch.frombuffer(objects.dumps(obj), dtype=torch.uint8)
    length = torch.tensor([data.numel()], dtype=torch.int64, device="cpu")
    lengths = synchronize(
        allgather_async(length, f"{name}.size", process_set)).tolist()
    gathered = synchronize(allgather_async(data, f"{name}.data", process_set))
    return [objects.loads(_bytes(part)) for part in gathered.split(lengths)]


def _bytes(data: torch.Tensor) -> Any:
    """The memory of `data`, as a buffer; `data` must live as long."""
    # Not with numpy, which torch does not require; nor with ctypes.string_at,
    # which takes less than 2 GiB.
    return (ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())
