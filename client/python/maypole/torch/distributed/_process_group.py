"""ProcessGroup: runs torch.distributed's operations as Maypole's.

torch calls the methods of a process group from Python and, through a trampoline, from C++ (DDP's reducer, functional
collectives), under names that depend on its version: all_gather_single is _allgather_base before torch 2.15. This
class has all of them. Options are torch.distributed's: reduceOp, rootRank (in the group), timeout.
"""

import contextlib
import datetime
import itertools
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ReduceOp

from maypole.common import basics, operations, process_sets
from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending
from maypole.common.process_sets import ProcessSet, id_of
from maypole.torch._compiling import not_compiled
from maypole.torch.distributed import _call_lines, _epochs, _futures, _parts, _world
from maypole.torch.distributed._methods import OtherDevices, method_of_group
from maypole.torch.distributed._names import Names
from maypole.torch.distributed._point_to_point import PointToPoint
from maypole.torch.distributed._work import Finish, Postponed, PostponedStart, Work


def _op(opts: Any) -> Any:
    """The reduction of these options."""
    return opts.reduceOp if opts is not None else ReduceOp.SUM


class _Level:
    """The calls of a group on one level: 0: the program's; for others see _futures.level().

    group: the beginning of the operations' names.
    """

    def __init__(self, group: str, level: int):
        self.prefix = f"{group}#" if level == 0 else f"{group}#callbacks{'' if level == 1 else level}."
        self.where = "" if level == 0 else "in callbacks " if level == 1 else f"in callbacks of level {level} "
        self.numbers = itertools.count()
        self.names = Names()
        self.latest: dict[int, weakref.ref[Work]] = {}  # by the number in a name
        self.order = _futures.Order(level)


class _Call:
    """One call of a group, for errors: str() names it, and it is the Work's Failed."""

    __slots__ = ("group", "what", "number", "level")

    def __init__(self, group: "ProcessGroup", what: str, number: int, level: _Level):
        self.group, self.what, self.number, self.level = group, what, number, level

    def __str__(self) -> str:
        return f"{self.what}, call {self.number} {self.level.where}of group '{self.group._shown}'"

    def __call__(self, error: Optional[HorovodInternalError]) -> str:
        return self.group._failed(error, None if self.level.where else self.number)


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks of the Maypole job; all methods except of() and open() are torch.distributed's.

    of() makes one, because torch's constructor takes only rank and size. Call open() then, and again whenever the
    group gets other ranks.

    others: the backends of the devices that Maypole does not serve, if there are any.
    """

    others: Optional[OtherDevices] = None

    _coalesced: Optional[list[Work]] = None
    _own_world: Optional[_world.World] = None  # of the default group
    _lines: Optional[_call_lines.CallLines] = None
    _abort_hooks: dict[int, Callable[[], None]]

    @classmethod
    def of(cls, rank: int, size: int, name: str, timeout: datetime.timedelta, store: Any) -> "ProcessGroup":
        """A group that is not open yet.

        Args:
            rank: this process's rank in the group.
            size: the number of ranks in the group.
            name: the group's name, a part of the operations' names.
            timeout: the timeout of operations whose options have none.
            store: the store of torch.distributed, for get_group_store().
        """
        self = cls(rank, size)
        self._now_rank, self._now_size = rank, size
        self._name = name
        self._shown = "world" if name in ("", "0", "default_pg") else name
        self._description = "undefined"
        self._timeout = timeout
        self._store = store
        self._abort_hooks = {}
        self._closed = "reconfigure() comes first, because it was made with enable_reconfigure=True"
        return self

    def open(self, process_set: ProcessSet, ranks: list[int], world: _world.World, is_default: bool) -> None:
        """Makes operations possible.

        Args:
            process_set: the group's ranks.
            ranks: these ranks' numbers in the job, by rank in the group.
            world: the default group's world.
            is_default: this group is the default group, and closes `world` when it is shut down.
        """
        self._process_set = process_set
        self._now_rank, self._now_size = ranks.index(basics.rank()), len(ranks)
        self._ranks = _parts.GroupRanks(ranks, self._now_rank)
        self._own_world = world if is_default else None
        self._in_names = _world.name_of_operations(self._shown, ranks)
        self._levels = {0: _Level(self._in_names, 0)}
        self._lines = None
        if _call_lines.wanted():
            self._lines = _call_lines.CallLines(self._store, basics.rank(), ranks, self._in_names)
        self._point_to_point = PointToPoint(self._shown, self._in_names, ranks, self._now_rank, world.offers)
        self._monitored = itertools.count(1)
        self._closed = ""

    def open_for_ranks(self, ranks: list[int]) -> None:
        """As open(), for a group that is not the default one.

        Args:
            ranks: the members' ranks in the job, by rank in the group.
        """
        if _world.current is None:
            raise RuntimeError(f"group '{self._shown}' of the backend 'maypole' needs a default group of it: call "
                               "init_process_group('maypole'), or init_process_group('cpu:maypole,...'), first")
        with self._naming(f"group '{self._shown}' of ranks {ranks} of the job"):
            process_set = process_sets.of_members(ranks)
        self.open(process_set, ranks, _world.current, is_default=False)

    # --- What torch asks about the group --------------------------------------

    def rank(self) -> int:
        return self._now_rank

    def size(self) -> int:
        return self._now_size

    def getRank(self) -> int:
        return self._now_rank

    def getSize(self) -> int:
        return self._now_size

    @not_compiled
    def getBackendName(self) -> str:
        return "maypole"

    def name(self) -> str:
        return "maypole"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        # torch's flight recorder records only backends in C++, and asks here whether there is one.
        if sys._getframe(1).f_code.co_name == "_maybe_attach_flight_recorder":
            return []
        return [torch.device("cpu"), torch.device("cuda")]

    # Properties of a backend in C++, of which this group has none.
    supports_coalescing = False
    supports_splitting = True
    supports_shrinking = True
    supports_reconfigure = True
    supports_abort_hooks = True

    def _get_backend(self, device: torch.device) -> Any:
        if self.others is not None and self.others.has(torch.device(device)):
            return self.others.group._get_backend(torch.device(device))
        return self

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def get_group_store(self) -> Any:
        return self._store

    @property
    def timeout(self) -> datetime.timedelta:
        """Of operations whose options have none."""
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Called by init_process_group(device_id=...). Does nothing: connections are made at the first operation."""

    # --- Reductions -----------------------------------------------------------

    @method_of_group
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._start("all_reduce", _parts.all_reduce(tensors, _op(opts)), tensors, opts, tensors)

    @method_of_group
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    @method_of_group
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        parts = _parts.reduce(self._ranks, tensors, _op(opts), self._checked("reduce", "root", opts.rootRank))
        return self._start("reduce", parts, tensors, opts, tensors)

    @method_of_group
    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        parts = _parts.reduce_scatter(self._ranks, outputs, inputs, _op(opts))
        return self._start("reduce_scatter", parts, outputs, opts, [t for rows in inputs for t in rows])

    @method_of_group
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @method_of_group
    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = None) -> Work:
        parts = _parts.reduce_scatter_single(self._ranks, outputs, inputs, _op(opts))
        return self._start("reduce_scatter_tensor", parts, outputs, opts, outputs)

    # --- Collectives that move data -------------------------------------------

    @method_of_group
    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        parts = _parts.broadcast(self._ranks, tensors, self._checked("broadcast", "root", opts.rootRank))
        return self._start("broadcast", parts, tensors, opts, tensors)

    @method_of_group
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        into = [t for of_input in outputs for t in of_input]
        return self._start("all_gather", _parts.all_gather(self._ranks, outputs, inputs), into, opts, into)

    @method_of_group
    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                            opts: Any = None) -> Work:
        # Here outputs[i] is for all ranks' i-th tensors.
        return self.allgather(outputs, inputs, opts)

    @method_of_group
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @method_of_group
    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                    opts: Any = None) -> Work:
        parts = _parts.all_gather_single(self._ranks, outputs, inputs)
        return self._start("all_gather_into_tensor", parts, outputs, opts, outputs)

    @method_of_group
    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        parts = _parts.gather(self._ranks, outputs, inputs, self._checked("gather", "root", opts.rootRank))
        return self._start("gather", parts, [t for into in outputs for t in into], opts)

    @method_of_group
    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        parts = _parts.scatter(self._ranks, outputs, inputs, self._checked("scatter", "root", opts.rootRank))
        return self._start("scatter", parts, outputs, opts)

    @method_of_group
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        return self._start("all_to_all", _parts.all_to_all(self._ranks, outputs, inputs), outputs, opts)

    @method_of_group
    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int],
                          input_splits: Sequence[int], opts: Any = None) -> Work:
        parts = _parts.all_to_all_single(self._ranks, output, tensor, output_splits, input_splits)
        return self._start("all_to_all_single", parts, [output], opts)

    @method_of_group
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        self._check_open()
        self._check_peer("send", "destination", dst)
        (tensor,) = tensors
        what = f"send to rank {dst} of group '{self._shown}'"
        with self._naming(what):
            pending = self._point_to_point.send(tensor.contiguous(), dst, tag)
        return self._noted(Work(what, [pending], tensors, None, self._timeout, self._failed))

    @method_of_group
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        self._check_open()
        self._check_peer("recv", "source", src)
        start = partial(self._point_to_point.receive, source=src, tag=tag)
        return self._received(src, tag, tensors, start)

    @method_of_group
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        self._check_open()
        return self._received(None, tag, tensors, partial(self._point_to_point.receive_any, tag=tag))

    recvAnysource = recv_anysource  # its name in C++

    def _received(self, source: Optional[int], tag: int, tensors: list[torch.Tensor],
                  start: Callable[[torch.Tensor], Any]) -> Work:
        (tensor,) = tensors
        buffer = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)

        def finish(results: list[Any]) -> None:
            if buffer is not tensor:
                tensor.copy_(buffer)

        what = f"recv from {'any rank' if source is None else f'rank {source}'} of group '{self._shown}'"
        with self._naming(what):
            pending = start(buffer)
        work = Work(what, [pending], tensors, finish, self._timeout, self._failed)
        work.note_late = partial(self._point_to_point.note_late, pending, source, tag)
        return self._noted(work)

    # --- Synchronization ------------------------------------------------------

    @method_of_group
    def barrier(self, opts: Any = None) -> Work:
        return self._start("barrier", _parts.barrier(), [], opts)

    def monitored_barrier(self, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
        """As barrier(); the error after the timeout names all ranks that have not come."""
        key, number = f"maypole/monitored/{self._in_names}", next(self._monitored)
        with contextlib.suppress(RuntimeError):  # the store is lost: the barrier's error says more
            self._store.set(f"{key}/{self._now_rank}", str(number))
        work = self.barrier()
        try:
            work.wait(timeout)
        except dist.DistBackendError as error:
            if work.is_completed():
                raise
            # The library names the missing ranks of this node; the store knows those of the others.
            missing = [str(rank) for rank in range(self._now_size) if not self._has_come(f"{key}/{rank}", number)]
            if not missing:
                raise
            raise dist.DistBackendError(f"{error}; of the ranks of group '{self._shown}' these have not come: "
                                        f"{','.join(missing)}") from None

    def _has_come(self, key: str, number: int) -> bool:
        """Whether a rank has come to the monitored barrier of this number, as far as the store says."""
        try:
            return bool(self._store.check([key])) and int(self._store.get(key)) >= number
        except RuntimeError:  # the store is lost
            return True

    def _start_coalescing(self, device: Any) -> None:
        if self.others is not None and self.others.has(torch.device(device)):
            self.others.group._start_coalescing(torch.device(device))
        else:
            self._coalesced = []

    def _end_coalescing(self, device: Any) -> Any:
        if self.others is not None and self.others.has(torch.device(device)):
            return self.others.group._end_coalescing(torch.device(device))
        works, self._coalesced = self._coalesced or [], None
        return Work.together(f"coalesced operations of group '{self._shown}'", works, self._timeout)

    # --- The end of a group, and other ranks ----------------------------------

    def abort(self) -> None:
        """Makes operations fail: of the default group on all ranks of the job, of another one those called later here.

        Aborting the default group ends the membership epoch.
        """
        self._call_abort_hooks()
        self._closed = "it was aborted"
        if self.others is not None:
            self.others.group.abort()
        if self._own_world is not None:
            self._own_world.offers.close()
            _epochs.leave()

    def shutdown(self) -> None:
        """Ends the group. Its process set stays: a group of the same ranks reuses it."""
        self._closed = "it was destroyed"
        if self.others is not None:
            self.others.group.shutdown()
        if self._own_world is not None:
            _world.close(self._own_world)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._abort_hooks.pop(hook_id, None)

    def _call_abort_hooks(self) -> None:
        for hook in list(self._abort_hooks.values()):
            hook()

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        """Called by shrink_group() on the ranks that stay; returns the smaller group as a torch Backend.

        If the membership epoch is over, or shrink_flags is not 0 (SHRINK_ABORT), it begins the next one.
        """
        from maypole.torch.distributed import _membership
        try:
            return _membership.shrunk(self, self._own_world, self._ranks.of_job, sorted(set(ranks_to_exclude)),
                                      shrink_flags)
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"shrink_group() of group '{self._shown}': {error}") from None

    def get_reconfigure_handle(self) -> str:
        return _epochs.HANDLE

    def reconfigure(self, opts: Any) -> Work:
        """Begins a membership epoch with the processes whose handles are given; the returned Work has ended."""
        from maypole.torch.distributed import _membership
        try:
            _membership.reconfigure(self, self._own_world, opts)
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"reconfigure() of group '{self._shown}': {error}") from None
        return Work(f"reconfigure of group '{self._shown}'", [], [], None, self._timeout, self._failed)

    def split_group(self, new_ranks: list[int], timeout: Optional[datetime.timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None,
                    device_types: Any = None) -> Optional["ProcessGroup"]:
        """Called by dist.split_group() on all ranks of this group; returns None on ranks outside the new one."""
        self._check_open()
        if self.others is not None:
            raise NotImplementedError("split_group() of a group of several backends; use new_group()")
        if self.rank() not in new_ranks:
            return None
        name = group_name or f"{self._name}.{'.'.join(map(str, new_ranks))}"
        child = ProcessGroup.of(new_ranks.index(self.rank()), len(new_ranks), name, timeout or self._timeout,
                                dist.PrefixStore(f"{name}/", self._store))
        child.setGroupDesc(group_desc or "undefined")
        child.open_for_ranks([self._ranks.of_job[rank] for rank in new_ranks])
        return child

    # --- What torch before 2.15 calls them ------------------------------------

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- How they are made ----------------------------------------------------

    def _start(self, what: str, parts: list[_parts.Part], tensors: list[torch.Tensor], opts: Any,
               equal: Sequence[torch.Tensor] = ()) -> Work:
        """Submits the parts of one call.

        Args:
            what: the call's name, for its errors.
            parts: its operations.
            tensors: those that get the results.
            opts: torch.distributed's, with the timeout.
            equal: tensors whose sizes and dtypes are equal on all ranks.
        """
        self._check_open()
        depth = _futures.level()
        level = self._levels.get(depth) or self._levels.setdefault(depth, _Level(self._in_names, depth))
        number = next(level.numbers)
        if self._lines is not None and depth == 0:
            self._lines.note(number, what)
        call = _Call(self, what, number, level)
        process_set = id_of(self._process_set)
        place = level.names.next((what, *[(t.dtype, t.shape) for t in equal]))
        # Ranks that differ in what the library does not compare get other names, and so an error with both.
        name = f"{level.prefix}{place}" if len(parts) < 2 else f"{level.prefix}{place}.of_{len(parts)}"
        # Then torch's function waits for it right after this call.
        awaited = len(parts) == 1 and not getattr(opts, "asyncOp", True)
        described = [
            part.describe(name=f"{name}{part.mark}" if index == 0 else f"{name}.{index}{part.mark}",
                          process_set=process_set, awaited=awaited) for index, part in enumerate(parts)
        ]
        pendings: list[Any] = described
        earlier = level.latest[place]() if place in level.latest else None  # of this name
        if earlier is not None and not earlier.done():
            start = PostponedStart(earlier, partial(_submit, described))
            pendings = [Postponed(pending, start) for pending in described]
        else:
            try:
                _submit(described)
            except HorovodInternalError as error:
                raise dist.DistBackendError(f"{call}: {error}{call(error)}") from None
        finish: Optional[Finish] = None
        finishes = [(index, part.finish) for index, part in enumerate(parts) if part.finish is not None]
        if finishes:

            def finish(results: list[Any]) -> None:
                for index, each in finishes:
                    each(results[index])

        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout.total_seconds() <= 0:
            timeout = self._timeout
        work = Work(call, pendings, tensors, finish, timeout, call, level.order)
        level.latest[place] = weakref.ref(work)
        return self._noted(work)

    def _noted(self, work: Work) -> Work:
        """Returns the Work of a call, which _end_coalescing() includes."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check_open(self) -> None:
        if self._closed:
            raise dist.DistBackendError(f"group '{self._shown}': {self._closed}")

    @contextlib.contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """Makes errors of the library those of torch.distributed."""
        try:
            yield
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"{what}: {error}{self._failed(error)}") from None

    def _checked(self, what: str, role: str, rank: int) -> int:
        """Returns a rank that the program has given."""
        if not 0 <= rank < self._now_size:
            raise ValueError(f"{what} of group '{self._shown}': the {role} is {rank}, expected a rank of 0 to "
                             f"{self._now_size - 1}")
        return rank

    def _check_peer(self, what: str, role: str, rank: int) -> None:
        if self._checked(what, role, rank) == self._now_rank:
            raise ValueError(f"{what} of group '{self._shown}': the {role} is {rank}, which is this rank; expected "
                             "another one")

    def _failed(self, error: Optional[HorovodInternalError], number: Optional[int] = None) -> str:
        """Called when a call has failed, or (error is None) is late; returns what to append to the error's text."""
        if error is not None:
            _epochs.note(error)
        self._call_abort_hooks()
        return "" if self._lines is None or number is None else self._lines.described(number)


def _submit(pendings: list[Pending]) -> None:
    if len(pendings) == 1:
        operations.start(pendings[0])
    elif pendings:
        operations.start_group(pendings)
