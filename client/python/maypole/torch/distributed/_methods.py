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


# Before torch 2.15 (or a little earlier), C++ that calls a method keeps only the C++ part of the Work that it gets.
# Without the Python part there is no wait() of ours, and C++'s own wait() never returns. So the group keeps the last
# Works that it has not given to torch's Python functions, whose callers hold them themselves.
_KEPT_WORKS = 1000 if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15) else 0
_FUNCTIONS = dist.distributed_c10d.__file__


def method_of_group(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup that returns a Work; calls with tensors of other devices go to their backends."""
    call = not_compiled(method)

    @functools.wraps(method)
    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        others: Optional[OtherDevices] = self.others
        if others is not None and others.has(_device_of(args)):
            name = method.__name__
            theirs = getattr(others.group, name, None) or getattr(others.group, OLD_NAMES[name])
            return theirs(*args, **kwargs)
        work = call(self, *args, **kwargs)
        if _KEPT_WORKS:
            caller = sys._getframe().f_back
            if caller is None or caller.f_code.co_filename != _FUNCTIONS:
                work.outlive_python()
                self.kept.append(work)
                if len(self.kept) > _KEPT_WORKS:
                    self.kept.popleft()
        return work

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
