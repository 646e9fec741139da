"""The methods of a group, as torch calls them; groups of several backends: "cpu:maypole,cuda:nccl".

torch.distributed makes one backend for each device and combines them, but only backends in C++: the first one that is a
Python class replaces the whole group. So this backend makes the other backends, as a separate group of
torch.distributed, and passes on to it the calls with tensors of other devices.
"""

import datetime
import functools
import sys
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from maypole.torch._compiling import not_compiled, skip_code

# The methods' names in torch before 2.15.
OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def backends_of_group() -> dict[str, str]:
    """{"cpu": "maypole", "cuda": "nccl"} of the group that torch.distributed makes now.

    torch.distributed does not pass this to a backend: it is a local variable of the function that calls us.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back  # type: ignore[assignment]
    config = frame.f_locals.get("backend_config") if frame is not None else None
    return {} if config is None else {device: str(name) for device, name in config.get_device_backend_map().items()}


class OtherDevices:
    """The backends of the devices that are not Maypole's.

    Args:
        backends: the backend of each device.
        options: the options of torch.distributed for the whole group.
    """

    def __init__(self, backends: dict[str, str], options: Any):
        self.devices = [torch.device(device) for device in backends]
        c10d = dist.distributed_c10d
        timeout: datetime.timedelta = options.timeout
        self.group, _ = c10d._new_process_group_helper(
            options.group_size, options.group_rank, list(options.global_ranks_in_group),
            ",".join(f"{device}:{name}" for device, name in backends.items()), options.store,
            group_name=f"{options.group_id}.others", timeout=timeout)
        self._forget()

    def _forget(self) -> None:
        """Hides the group from torch's register, because programs must not see it."""
        world = dist.distributed_c10d._world
        unregister = getattr(torch._C._distributed_c10d, "_unregister_process_group", None)
        if unregister is not None:  # torch 2.1 has no register
            unregister(world.pg_names[self.group])
        for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag):
            table.pop(self.group, None)
        for groups in world.tags_to_pg.values():
            while self.group in groups:
                groups.remove(self.group)

    def has(self, device: Optional[torch.device]) -> bool:
        """Whether these backends serve tensors of this device."""
        return device is not None and any(device.type == each.type for each in self.devices)


# The methods that torch's ProcessGroup also has with tensors in place of lists, and with single arguments in place of
# options: how many arguments have tensors, the class of the options, and its fields by the arguments that follow.
_OP, _ROOT, _TIMEOUT = ("op", "reduceOp"), ("root", "rootRank"), ("timeout", "timeout")
_SHORT_FORMS: dict[str, tuple[int, Any, tuple[tuple[str, str], ...]]] = {
    "allreduce": (1, _c10d.AllreduceOptions, (_OP, _TIMEOUT)),
    "broadcast": (1, _c10d.BroadcastOptions, (_ROOT, _TIMEOUT)),
    "reduce": (1, _c10d.ReduceOptions, (_ROOT, _OP, _TIMEOUT)),
    "allgather": (2, _c10d.AllgatherOptions, (_TIMEOUT,)),
    "gather": (2, _c10d.GatherOptions, (_ROOT, _TIMEOUT)),
    "scatter": (2, _c10d.ScatterOptions, (_ROOT, _TIMEOUT)),
    "reduce_scatter": (2, _c10d.ReduceScatterOptions, (_OP, _TIMEOUT)),
    "barrier": (0, _c10d.BarrierOptions, (_TIMEOUT,)),
}


def _in_full(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method: lists of tensors, and options."""
    number, options, fields = _SHORT_FORMS[name]
    if not kwargs and hasattr(args[-1] if args else None, "timeout") and isinstance(args[0], (list, options)):
        return args  # as torch's functions call it
    tensors, rest = list(args[:number]), list(args[number:])
    given = dict(kwargs)
    for key in [key for key in kwargs if key != "opts" and key not in dict(fields)]:
        tensors.append(given.pop(key))
    if any(isinstance(each, torch.Tensor) for each in tensors):
        tensors = [[each] for each in tensors]
    if "opts" in given:
        rest.append(given.pop("opts"))
    if not given and (not rest or rest[0] is None or hasattr(rest[0], "timeout")):
        return (*tensors, *rest)
    given.update(zip(dict(fields), rest))
    opts = options()
    for argument, field in fields:
        if given.get(argument) is not None:
            setattr(opts, field, given[argument])
    return (*tensors, opts)


def method_of_group(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup that returns a Work; calls with tensors of other devices go to their backends."""
    name = method.__name__

    @not_compiled
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name in _SHORT_FORMS:
            return method(self, *_in_full(name, args, kwargs))
        return method(self, *args, **kwargs)

    @functools.wraps(method)
    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        others: Optional[OtherDevices] = self.others
        if others is not None and others.has(_device_of(args)):
            theirs = getattr(others.group, name, None) or getattr(others.group, OLD_NAMES[name])
            return theirs(*args, **kwargs)
        return call(self, *args, **kwargs)

    skip_code(chosen)
    return chosen


def _device_of(args: Any) -> Optional[torch.device]:
    """The device of the first tensor in these, or in lists in these."""
    for each in args:
        if isinstance(each, torch.Tensor):
            return each.device
        if isinstance(each, (list, tuple)):
            found = _device_of(each)
            if found is not None:
                return found
    return None
