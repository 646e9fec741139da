"""Broadcasts models, optimizers and Python objects.

All ranks must call these, with the same names. Thread contract: one thread at a
time, because the names are fixed. Errors are those of async_ops and
synchronize().
"""

from collections.abc import Iterable
from typing import Any, Optional, Union

import torch

from maypole.common import basics, objects, operations
from maypole.torch import _submissions
from maypole.torch._compiling import not_compiled
from maypole.torch._in_place import load_state_dict
from maypole.torch._structures import places, put_back, specs_of, take_out, tensors_for
from maypole.torch._tensors import shares_memory


@not_compiled
def broadcast_parameters(params: Union[dict[str, Any], Iterable[Any]],
                         root_rank: int) -> None:
    """Overwrites `params` on all ranks with those of rank `root_rank`, in place.

    params: a dict such as model.state_dict(), or a list of tensors or of
    (name, tensor) such as model.named_parameters(). A tensor may also be an
    array that async_ops accepts. Entries that are None are skipped; any other
    entry raises ValueError. Each tensor must be on the CPU on all ranks, or on a CUDA
    device on all ranks.
    """
    pending = []
    try:
        for name, tensor in _named(params):
            if tensor is not None:
                pending.append(operations.start(_submissions.changes(
                    _submissions.broadcast(tensor, root_rank, name, 0, True), tensor)))
    finally:
        # Even if a tensor was refused, so that no pending operation writes later.
        _, error = operations.wait_all(pending)
        if error is not None:
            raise error


def _named(params: Any) -> list[tuple[Optional[str], Any]]:
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


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer,
                              root_rank: int,
                              model: Optional[torch.nn.Module] = None) -> None:
    """Overwrites the optimizer's state on all ranks with rank `root_rank`'s.

    Afterwards state and options (learning rate, ...) are the root's; the dicts
    of groups and state stay the same objects. State that is on a CUDA device on
    the root is on one here as well; then all ranks need one. The optimizer is
    not stepped, so an optimizer without state stays without. `model` is not
    needed and is accepted for compatibility. Raises ValueError for LBFGS,
    because the ranks would evaluate different closures.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of torch.optim.LBFGS")
    is_root = basics.rank() == root_rank
    finish_pending = getattr(optimizer, "_finish_pending", None)  # of a DistributedOptimizer
    if finish_pending is not None:
        finish_pending()
    tensors: list[torch.Tensor] = []
    own = take_out(optimizer.state_dict(), tensors)
    skeleton = broadcast_object(own if is_root else None, root_rank,
                                "broadcast_optimizer_state")
    in_place = is_root or list(places(own)) == list(places(skeleton))
    if not in_place:
        tensors = tensors_for(specs_of(skeleton), optimizer)
    broadcast_parameters([(f"broadcast_optimizer_state.{i}", tensor)
                          for i, tensor in enumerate(tensors)], root_rank)
    if not is_root:
        load_state_dict(optimizer, put_back(skeleton, tensors))


broadcast_object = not_compiled(objects.broadcast_object)
allgather_object = not_compiled(objects.allgather_object)
