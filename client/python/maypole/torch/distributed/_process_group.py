"""ProcessGroup: torch.distributed's operations as Maypole's.

torch calls the methods of a process group from Python and, through a trampoline, from C++ (DDP's reducer, functional
collectives), under names that differ by its version: all_gather_single is _allgather_base before torch 2.15. All of
them are here. Options are torch.distributed's: reduceOp, rootRank (in the group), timeout.
"""

import collections
import datetime
import functools
import itertools
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ReduceOp

from maypole.common import basics, operations, process_sets
from maypole.common.constants import Average, Max, Min, Product, Sum
from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending
from maypole.common.process_sets import ProcessSet, id_of
from maypole.torch import _submissions
from maypole.torch.distributed import _call_lines, _epochs, _world
from maypole.torch.distributed._methods import OtherDevices, method_of_group, untraced
from maypole.torch.distributed._names import Names
from maypole.torch.distributed._point_to_point import PointToPoint
from maypole.torch.distributed._work import Finish, Work

_REDUCTIONS = {
    ReduceOp.SUM: Sum,
    ReduceOp.AVG: Average,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    ReduceOp.PRODUCT: Product,
    ReduceOp.PREMUL_SUM: Sum,
}
# Not Maypole's: from all ranks' inputs, on each rank.
_BITWISE = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def _red_op(op: Any) -> Any:
    """The value of ReduceOp.RedOpType of what torch's options have."""
    return getattr(op, "op", op)


def _factor(op: Any) -> float:
    """The factor of a PREMUL_SUM; 1 for others."""
    if _red_op(op) != ReduceOp.PREMUL_SUM:
        return 1.0
    factor = op.__getstate__()[1]
    return float(factor)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row, so that allgather concatenates whole tensors of any shape."""
    return tensor.reshape(1, -1)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, one after the other."""
    dtype = tensors[0].dtype
    flat = [t.reshape(-1) for t in tensors]
    if dtype.is_floating_point and flat[0].element_size() == 1:  # float8: older versions of torch cannot concatenate it
        return torch.cat([t.view(torch.uint8) for t in flat]).view(dtype)
    return torch.cat(flat)


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks of the Maypole job; all methods but those of this paragraph are torch.distributed's.

    of() makes one, because torch's constructor takes rank and size only. Then comes open(), and again when the group
    gets other ranks.

    others: the backends of other devices than Maypole's, if there are any. kept: see _methods.py.
    """

    others: Optional[OtherDevices] = None
    kept: "collections.deque[Work]"

    _coalesced: Optional[list[Work]] = None
    _own_world: Optional[_world.World] = None  # of the default group
    _lines: Optional[_call_lines.CallLines] = None
    _abort_hooks: dict[int, Callable[[], None]]

    @classmethod
    def of(cls, rank: int, size: int, name: str, timeout: datetime.timedelta, store: Any) -> "ProcessGroup":
        """A group that is not open yet.

        Args:
            rank: in the group.
            size: of the group.
            name: the group's, in operations' names.
            timeout: of operations whose options have none.
            store: torch.distributed's, for get_group_store().
        """
        self = cls(rank, size)
        self._now_rank, self._now_size = rank, size
        self._name = name
        self._shown = "world" if name in ("", "0", "default_pg") else name
        self._description = "undefined"
        self._timeout = timeout
        self._store = store
        self._abort_hooks = {}
        self.kept = collections.deque()
        self._closed = "reconfigure() comes first, because it was made with enable_reconfigure=True"
        return self

    def open(self, process_set: ProcessSet, ranks: list[int], world: _world.World, is_default: bool) -> None:
        """Makes operations possible.

        Args:
            process_set: the group's ranks.
            ranks: the same, in the job, by rank in the group.
            world: of the default group.
            is_default: this group is the default group, and closes `world` when it is shut down.
        """
        self._process_set = process_set
        self._ranks = ranks
        self._now_rank, self._now_size = ranks.index(basics.rank()), len(ranks)
        # Ranks in the group by their place in the process set, whose order is the job's.
        self._order = sorted(range(len(ranks)), key=ranks.__getitem__)
        self._in_order = self._order == list(range(len(ranks)))
        self._own_world = world if is_default else None
        self._calls = itertools.count()
        self._names = Names()
        self._latest: dict[int, list[Optional[int]]] = {}  # by number of a name: the native handles of its last call
        self._lines = _call_lines.CallLines(self._store, basics.rank(), ranks) if _call_lines.wanted() else None
        self._point_to_point = PointToPoint(self._shown, ranks, self._now_rank, world.offers)
        self._closed = ""

    # --- What torch asks about the group --------------------------------------

    def rank(self) -> int:
        return self._now_rank

    def size(self) -> int:
        return self._now_size

    def getRank(self) -> int:
        return self._now_rank

    def getSize(self) -> int:
        return self._now_size

    @untraced
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
        # torch's flight recorder records a backend in C++ only, and asks this whether there is one.
        if sys._getframe(1).f_code.co_name == "_maybe_attach_flight_recorder":
            return []
        return [torch.device("cpu"), torch.device("cuda")]

    # Of a backend in C++, which this group has none of.
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
        """What init_process_group(device_id=...) calls. Connections come with the first operation all the same."""

    # --- Reductions -----------------------------------------------------------

    @method_of_group
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        op = opts.reduceOp if opts is not None else ReduceOp.SUM
        parts = [part for t in tensors for part in (_sparse(t, op) if t.is_sparse else [self._reduced(t, op)])]
        return self._start("all_reduce", parts, tensors, opts, tensors)

    @method_of_group
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    @method_of_group
    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        # On other ranks than the root the tensor keeps its values, as with Gloo.
        at_root = self.rank() == opts.rootRank
        parts = [self._reduced(t, opts.reduceOp, None if at_root else torch.empty_like(t)) for t in tensors]
        return self._start("reduce", parts, tensors, opts, tensors)

    @method_of_group
    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        parts = []
        for output, rows in zip(outputs, inputs):
            sizes = {t.numel() for t in rows}
            if sizes == {output.numel()}:
                parts.append(self._scattered(output, torch.cat([_rows(t) for t in rows]), opts))
            else:  # a part for each rank, of any size: reduced as one, and cut
                whole = _joined(rows)
                start = sum(t.numel() for t in rows[:self.rank()])
                parts.append(self._reduced_part(output, whole, start, opts))
        return self._start("reduce_scatter", parts, outputs, opts, [t for rows in inputs for t in rows])

    @method_of_group
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @method_of_group
    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = None) -> Work:
        parts = []
        for output, tensor in zip(outputs, inputs):
            if tensor.numel() != output.numel() * self.size():
                raise ValueError(f"reduce_scatter_tensor: the input has {tensor.numel()} elements, expected "
                                 f"{self.size()} times the output's {output.numel()}")
            parts.append(self._scattered(output, tensor.reshape(self.size(), output.numel()), opts))
        return self._start("reduce_scatter_tensor", parts, outputs, opts, outputs)

    # --- Collectives that move data -------------------------------------------

    @method_of_group
    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        root = self._ranks[opts.rootRank]
        parts = [_Part(partial(_submissions.broadcast, t, root, in_place=True)) for t in tensors]
        return self._start("broadcast", parts, tensors, opts, tensors)

    @method_of_group
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        parts = []
        for into, tensor in zip(outputs, inputs):
            same = all(t.numel() == tensor.numel() for t in into)
            row = _rows(tensor) if same else tensor.reshape(-1)
            parts.append(_Part(partial(_submissions.allgather, row), partial(_copy_parts, self._ordered(into))))
        flat = [t for into in outputs for t in into]
        return self._start("all_gather", parts, flat, opts, flat)

    @method_of_group
    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                            opts: Any = None) -> Work:
        # Here outputs[i] are the i-th tensors' of all ranks.
        return self.allgather(outputs, inputs, opts)

    @method_of_group
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @method_of_group
    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                    opts: Any = None) -> Work:
        parts = []
        for output, tensor in zip(outputs, inputs):
            if output.numel() != tensor.numel() * self.size():
                raise ValueError(f"all_gather_into_tensor: the output has {output.numel()} elements, expected "
                                 f"{self.size()} times the input's {tensor.numel()}")
            finish = partial(_copy_whole, output) if self._in_order else partial(_copy_rows, output, self._order)
            parts.append(_Part(partial(_submissions.allgather, _rows(tensor)), finish))
        return self._start("all_gather_into_tensor", parts, outputs, opts, outputs)

    @method_of_group
    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        parts = []
        for number, tensor in enumerate(inputs):
            flat = tensor.reshape(-1)
            splits = [flat.numel() if rank == opts.rootRank else 0 for rank in self._order]
            into = self._ordered(outputs[number]) if self.rank() == opts.rootRank else []
            parts.append(_Part(partial(_submissions.alltoall, flat, splits), partial(_copy_received, into)))
        return self._start("gather", parts, [t for into in outputs for t in into], opts)

    @method_of_group
    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        parts = []
        for number, output in enumerate(outputs):
            sent = self._ordered(inputs[number]) if self.rank() == opts.rootRank else []
            flat = _joined(sent) if sent else output.new_empty(0)
            splits = [t.numel() for t in sent] or [0] * self.size()
            parts.append(_Part(partial(_submissions.alltoall, flat, splits), partial(_copy_received, [output])))
        return self._start("scatter", parts, outputs, opts)

    @method_of_group
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        sent = self._ordered(inputs)
        flat = _joined(sent)
        part = _Part(partial(_submissions.alltoall, flat, [t.numel() for t in sent]),
                     partial(_copy_received, self._ordered(outputs)))
        return self._start("all_to_all", [part], outputs, opts)

    @method_of_group
    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int],
                          input_splits: Sequence[int], opts: Any = None) -> Work:
        size = self.size()
        for what, given, of in (("input", input_splits, tensor), ("output", output_splits, output)):
            rows = of.shape[0] if of.dim() else 0
            if (sum(given) != rows or len(given) != size) if given else rows % size != 0:
                raise ValueError(f"all_to_all_single: the {what} has {rows} rows, which {list(given) or size} do not "
                                 "divide among the ranks")
        splits = list(input_splits) or [tensor.shape[0] // size] * size
        into: Sequence[torch.Tensor] = [output]
        if not self._in_order:
            tensor = torch.cat(self._ordered(tensor.split(splits)))
            splits = self._ordered(splits)
            into = self._ordered(output.split(list(output_splits) or [output.shape[0] // size] * size))
        part = _Part(partial(_submissions.alltoall, tensor, splits), partial(_copy_received, into))
        return self._start("all_to_all_single", [part], [output], opts)

    @method_of_group
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        self._check_open()
        (tensor,) = tensors
        return Work(f"send to rank {dst} of group '{self._shown}'",
                    [self._point_to_point.send(tensor.contiguous(), dst, tag)], tensors, None, self._timeout,
                    self._failed)

    @method_of_group
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        self._check_open()
        start = partial(self._point_to_point.receive, source=src, tag=tag)
        return self._received(f"rank {src}", tensors, start)

    @method_of_group
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        self._check_open()
        return self._received("any rank", tensors, partial(self._point_to_point.receive_any, tag=tag))

    recvAnysource = recv_anysource  # what C++ calls it

    def _received(self, source: str, tensors: list[torch.Tensor], start: Callable[[torch.Tensor], Any]) -> Work:
        (tensor,) = tensors
        buffer = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)

        def finish(results: list[Any]) -> None:
            if buffer is not tensor:
                tensor.copy_(buffer)

        return Work(f"recv from {source} of group '{self._shown}'", [start(buffer)], tensors, finish, self._timeout,
                    self._failed)

    # --- Synchronization ------------------------------------------------------

    @method_of_group
    def barrier(self, opts: Any = None) -> Work:
        # A reduction, which is matched by the group's order as all others are.
        part = _allreduce(torch.zeros(1, dtype=torch.uint8), Sum, 1.0)
        return self._start("barrier", [part], [], opts)

    def monitored_barrier(self, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
        """As barrier(); the error after the timeout names all ranks that have not come."""
        self.barrier().wait(timeout)

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
        """Makes operations fail: those of the default group on all ranks of the job, those of another one when called.

        The abort of the default group ends the membership epoch.
        """
        self._call_abort_hooks()
        self._closed = "it was aborted"
        if self.others is not None:
            self.others.group.abort()
        if self._own_world is not None:
            self._own_world.offers.close()
            _epochs.leave()

    def shutdown(self) -> None:
        """The process set stays: a group of the same ranks uses it again."""
        self._closed = "it was destroyed"
        if self.others is not None:
            self.others.group.shutdown()
        if self._own_world is not None:
            self._own_world.offers.close()

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._abort_hooks.pop(hook_id, None)

    def _call_abort_hooks(self) -> None:
        for hook in list(self._abort_hooks.values()):
            hook()

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        """What shrink_group() calls on the ranks that stay; returns the smaller group as a torch Backend.

        If the membership epoch is over, or shrink_flags is not 0 (SHRINK_ABORT), it begins the next one.
        """
        from maypole.torch.distributed import _membership
        try:
            return _membership.shrunk(self, self._own_world, self._ranks, sorted(set(ranks_to_exclude)), shrink_flags)
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"shrink_group() of group '{self._shown}': {error}") from None

    def get_reconfigure_handle(self) -> str:
        return _epochs.HANDLE

    def reconfigure(self, opts: Any) -> Work:
        """Begins a membership epoch with those whose handles are given; the Work has ended."""
        from maypole.torch.distributed import _membership
        try:
            _membership.reconfigure(self, self._own_world, opts)
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"reconfigure() of group '{self._shown}': {error}") from None
        return Work(f"reconfigure of group '{self._shown}'", [], [], None, self._timeout, self._failed)

    def split_group(self, new_ranks: list[int], timeout: Optional[datetime.timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None,
                    device_types: Any = None) -> Optional["ProcessGroup"]:
        """What dist.split_group() calls on all ranks of this group; None on those that are not in the new one."""
        self._check_open()
        if self.others is not None:
            raise NotImplementedError("split_group() of a group of several backends; use new_group()")
        if self.rank() not in new_ranks:
            return None
        name = group_name or f"{self._name}.{'.'.join(map(str, new_ranks))}"
        child = ProcessGroup.of(new_ranks.index(self.rank()), len(new_ranks), name, timeout or self._timeout,
                                dist.PrefixStore(f"{name}/", self._store))
        child.setGroupDesc(group_desc or "undefined")
        ranks = [self._ranks[rank] for rank in new_ranks]
        assert _world.current is not None
        child.open(process_sets.of_members(ranks), ranks, _world.current, is_default=False)
        return child

    # --- What torch before 2.15 calls them ------------------------------------

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- How they are made ----------------------------------------------------

    def _start(self, what: str, parts: list["_Part"], tensors: list[torch.Tensor], opts: Any,
               equal: Sequence[torch.Tensor] = ()) -> Work:
        """Submits the parts of one call.

        Args:
            tensors: those that get the results.
            equal: tensors whose sizes and dtypes are equal on all ranks.
        """
        self._check_open()
        number = next(self._calls)
        if self._lines is not None:
            self._lines.note(number, what)
        called = f"{what}, call {number} of group '{self._shown}'"
        failed = partial(self._failed, number=number)
        process_set = id_of(self._process_set)
        place = self._names.next((what, *((t.dtype, t.shape) for t in equal)))
        name = f"{self._shown}#{place}"
        pendings = [
            part.describe(name=name if index == 0 else f"{name}.{index}", process_set=process_set)
            for index, part in enumerate(parts)
        ]
        try:
            try:
                _submit(pendings)
            except ValueError:
                # Perhaps because an operation of this name was under way. Whatever else it is comes again.
                for native in self._latest.get(place, ()):
                    if native is not None:
                        operations.await_end(native)
                _submit(pendings)
        except HorovodInternalError as error:
            raise dist.DistBackendError(f"{called}: {error}{failed(error)}") from None
        self._latest[place] = [pending.native for pending in pendings]
        finishes = [part.finish for part in parts]
        finish: Optional[Finish] = None
        if any(f is not None for f in finishes):

            def finish_all(results: list[Any]) -> None:
                for each, result in zip(finishes, results):
                    if each is not None:
                        each(result)

            finish = finish_all
        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout.total_seconds() <= 0:
            timeout = self._timeout
        work = Work(called, pendings, tensors, finish, timeout, failed)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check_open(self) -> None:
        if self._closed:
            raise dist.DistBackendError(f"group '{self._shown}': {self._closed}")

    def _failed(self, error: Optional[HorovodInternalError], number: Optional[int] = None) -> str:
        """What a call does that has failed, or (error is None) is late; returns what its text gets at its end."""
        if error is not None:
            _epochs.note(error)
        self._call_abort_hooks()
        return "" if self._lines is None or number is None else self._lines.described(number)

    def _ordered(self, of_ranks: Sequence[Any]) -> list[Any]:
        """What is by rank in the group, by place in the process set."""
        return list(of_ranks) if self._in_order else [of_ranks[rank] for rank in self._order]

    def _reduced(self, tensor: torch.Tensor, op: Any, into: Optional[torch.Tensor] = None) -> "_Part":
        """The reduction of `tensor`, into itself or into another one of its shape and strides."""
        kind = _red_op(op)
        target = tensor if into is None else into
        if kind in _BITWISE:
            return _Part(partial(_submissions.allgather, _rows(tensor)), partial(_copy_bitwise, target, kind))
        if into is not None:
            into.copy_(tensor)
        return _allreduce(target, _reduction(kind), _factor(op))

    def _scattered(self, output: torch.Tensor, rows: torch.Tensor, opts: Any) -> "_Part":
        """This rank's row of the sum of `rows`, into `output`."""
        op = opts.reduceOp if opts is not None else ReduceOp.SUM
        if _red_op(op) in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
            ordered = rows if self._in_order else rows[self._order]
            return _Part(partial(_submissions.reducescatter, ordered, op=_reduction(_red_op(op)), prescale=_factor(op),
                                 postscale=1.0), partial(_copy_whole, output))
        return self._reduced_part(output, rows.reshape(-1), self.rank() * output.numel(), opts)

    def _reduced_part(self, output: torch.Tensor, whole: torch.Tensor, start: int, opts: Any) -> "_Part":
        """The elements of the reduction of `whole` from `start` on, into `output`."""
        reduced = self._reduced(whole, opts.reduceOp if opts is not None else ReduceOp.SUM, torch.empty_like(whole))
        before = reduced.finish

        def finish(result: Any) -> None:
            if before is not None:
                before(result)
            output.copy_(result[start:start + output.numel()].view(output.shape))

        return reduced._replace(finish=finish)


def _submit(pendings: list[Pending]) -> None:
    if len(pendings) == 1:
        operations.start(pendings[0])
    elif pendings:
        operations.start_group(pendings)


class _Part(NamedTuple):
    """One operation of a call, not submitted yet.

    describe: given its name and process set, returns what operations.start() takes. finish: gets its result, if that
    is not in place.
    """

    describe: Callable[..., Pending]
    finish: Optional[Callable[[Any], None]] = None


def _allreduce(tensor: torch.Tensor, op: Any, factor: float) -> _Part:
    return _Part(partial(_submissions.allreduce, tensor, op=op, prescale=factor, postscale=1.0, in_place=True))


def _sparse(tensor: torch.Tensor, op: Any) -> list[_Part]:
    """The sum of sparse tensors of one shape, into `tensor`: all ranks' indices and values, added up by each rank."""
    if _red_op(op) != ReduceOp.SUM:
        raise ValueError(f"all_reduce of a sparse tensor: {op} is not SUM, which is the only one, as with Gloo")
    own = tensor.coalesce()
    gathered: list[torch.Tensor] = []

    def finish(values: torch.Tensor) -> None:
        tensor.copy_(torch.sparse_coo_tensor(gathered[0].t(), values, tensor.shape).coalesce())

    return [_Part(partial(_submissions.allgather, own.indices().t().contiguous()), gathered.append),
            _Part(partial(_submissions.allgather, own.values()), finish)]


def _reduction(kind: Any) -> Any:
    if kind not in _REDUCTIONS:
        raise ValueError(f"{kind} is not a reduction of the backend 'maypole'; use SUM, AVG, PREMUL_SUM, MIN, MAX, "
                         "PRODUCT, BAND, BOR or BXOR")
    return _REDUCTIONS[kind]


# --- What becomes of results --------------------------------------------------


def _copy_whole(output: torch.Tensor, result: torch.Tensor) -> None:
    output.copy_(result.view(output.shape))


def _copy_rows(output: torch.Tensor, order: list[int], result: torch.Tensor) -> None:
    """The i-th row of the result is the order[i]-th of the output."""
    rows = torch.empty_like(result)
    rows[order] = result
    _copy_whole(output, rows)


def _copy_parts(outputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Cuts the result into the outputs, one after the other."""
    flat, start = result.reshape(-1), 0
    for output in outputs:
        output.copy_(flat[start:start + output.numel()].view(output.shape))
        start += output.numel()


def _copy_received(outputs: Sequence[torch.Tensor], result: tuple[torch.Tensor, torch.Tensor]) -> None:
    _copy_parts(outputs, result[0])


def _copy_bitwise(output: torch.Tensor, kind: Any, result: torch.Tensor) -> None:
    output.copy_(functools.reduce(_BITWISE[kind], list(result)).view(output.shape))
