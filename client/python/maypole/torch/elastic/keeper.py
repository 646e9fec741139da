"""StateKeeper: keeps a state's commits in memory that the executor holds.

    keeper = StateKeeper("state", handlers)
    keeper.save(rest)                   # a commit
    keeper.restore()                    # back to it

    rest = keeper.load_newest()         # a new process: what a dead one has left
    keeper.sync(plan)                   # all ranks: the tensors of plan.root
    keeper.start(plan)                  # then the commits of the new epoch

The first rank of each node writes its commits to a CommitMemory and gives the
executor its descriptor; that memory is also this rank's own copy, so a commit
costs one copy of the tensors. The other ranks of the node keep private copies,
as without a keeper.

sync() compares digests and broadcasts a tensor only if some rank's values
differ from the root's. So the result is that of broadcasting everything,
whatever each rank has found, even where nodes differ (in running statistics of
a BatchNorm, for example).

Tensors are copied flat; everything else in the state is pickled, including `rest`.

Thread contract: one thread.
"""

import logging
from typing import Any, Optional

import torch

from maypole import _native
from maypole.common import basics, objects
from maypole.common.agreement import Plan
from maypole.common.commit_memory import ALIGNMENT, Commit, CommitMemory
from maypole.common.constants import Max
from maypole.torch._structures import places, put_back, specs_of, take_out
from maypole.torch.functions import broadcast_object, broadcast_parameters
from maypole.torch.ops import allreduce

_log = logging.getLogger("maypole.elastic")

# For a description that grows from commit to commit, for example by lists of losses.
_SLACK = 64 * 1024

# No digest is longer than this one when pickled.
_LONGEST = 2**64 - 1

# (offset in the half, bytes, digest) of a tensor.
Span = tuple[int, int, int]


class StateKeeper:
    """See the head of this file.

    handlers: the TensorsHandlers of the state, by name; values of other
    handlers are in `rest`. restored_bytes, broadcast_bytes: bytes that this
    process has read from memory of dead processes, and that sync() has
    broadcast to or from it.
    """

    def __init__(self, name: str, handlers: dict[str, Any]):
        self.name = name
        self.commit: Optional[Commit] = None  # the last one saved or loaded
        self.restored_bytes = 0
        self.broadcast_bytes = 0
        self._handlers = handlers
        self._generation = 0
        self._number = 0
        self._memory: Optional[CommitMemory] = None
        self._in_memory: Optional[Commit] = None  # the last save() there
        # basics.joins() of the epoch whose executor holds the memory.
        self._held_in: Optional[int] = None
        self._refused = False
        self._found: Optional[CommitMemory] = None
        self._loaded: dict[str, list[int]] = {}  # digests, by handler

    # --- Commits --------------------------------------------------------------

    def start(self, plan: Plan) -> None:
        """Begins the commits of a new membership epoch."""
        self._generation, self._number = plan.generation, 0
        self._found = None
        self._loaded = {}

    def save(self, rest: Any) -> bool:
        """Saves a commit; returns whether it is in the keeper's memory. If not, the handlers must save their values."""
        self._number += 1
        commit = Commit(self._generation, self._number)
        kept = self._stores() and self._try_to_write(commit, rest)
        if not kept:
            self._memory = None
        self.commit = commit
        return kept

    def restore(self) -> None:
        """Returns to the last save(), which must have returned True."""
        assert self._memory is not None and self._in_memory is not None
        half = self._memory.commits()[self._in_memory]
        self._read(self._memory, half)

    def drop(self) -> None:
        """Frees the memory when the training is over, so that no process continues it."""
        if self._stores():
            self._held_in = None
            self._try_to_drop()

    def _try_to_drop(self) -> None:
        try:
            _native.library().drop_state(self.name)
        except _native.StatusError as error:
            _log.info("maypole: the executor has not dropped the state: %s",
                      error)

    def _stores(self) -> bool:
        return (self.started and not self._refused
                and basics.in_job() and basics.local_rank() == 0)

    def _refuse(self, why: str) -> None:
        self._refused = True
        _log.warning(
            "maypole: the executor does not keep the state %r: %s; training "
            "continues, but this state does not survive its ranks", self.name,
            why)
        # Otherwise an old commit could be taken for the last one.
        self._try_to_drop()

    def _try_to_write(self, commit: Commit, rest: Any) -> bool:
        try:
            self._hand_over(self._write(commit, rest))
            return True
        except OSError as error:
            self._refuse(f"no memory for it: {error}")
        except _native.StatusError as error:
            self._refuse(str(error))
        return False

    def _write(self, commit: Commit, rest: Any) -> CommitMemory:
        taken = {}
        spans: dict[str, list[Span]] = {}
        at = 0
        for name, handler in self._handlers.items():
            tensors: list[torch.Tensor] = []
            taken[name] = (take_out(handler.contents(), tensors), tensors)
            spans[name] = []
            for tensor in tensors:
                size = tensor.numel() * tensor.element_size()
                spans[name].append((at, size, _LONGEST))
                at += -(-size // ALIGNMENT) * ALIGNMENT
        length = len(self._described(taken, spans, rest))
        if self._memory is None or at + length > self._memory.half_bytes:
            self._memory = CommitMemory.create(at + 2 * (length + _SLACK))
            self._held_in = None
        memory = self._memory
        half = memory.begin()
        for name, (_, tensors) in taken.items():
            spans[name] = [
                (begin, size, _write_tensor(memory, half, begin, tensor))
                for (begin, size, _), tensor in zip(spans[name], tensors)
            ]
        memory.publish(half, commit, self._described(taken, spans, rest), at)
        self._in_memory = commit
        return memory

    @property
    def started(self) -> bool:
        """Whether this process has the job's state: a sync() has completed."""
        return self._generation > 0

    @staticmethod
    def _described(taken: dict[str, Any], spans: dict[str, list[Span]],
                   rest: Any) -> bytearray:
        return objects.dumps(
            ({name: (skeleton, spans[name])
              for name, (skeleton, _) in taken.items()}, rest))

    def _hand_over(self, memory: CommitMemory) -> None:
        if self._held_in == basics.joins():
            return
        try:
            _native.library().keep_state(self.name, memory.fd)
            self._held_in = basics.joins()
        except _native.StatusError as error:
            if error.code not in (_native.UNAVAILABLE, _native.ABORTED):
                raise
            # The executor has died: the next epoch has another one.
            _log.info("maypole: the executor does not take the state: %s",
                      error)

    # --- What dead processes have left ----------------------------------------

    def load_newest(self) -> Any:
        """Overwrites the state's tensors with the newest commit that the executor holds.

        Sets `commit`, and returns the commit's `rest`; None if it holds none.
        """
        self.commit = None
        self._found = None
        self._loaded = {}  # of a sync() that failed
        try:
            fd = _native.library().find_state(self.name)
            if fd is None:
                return None
            self._found = CommitMemory.attach(fd)
        except (_native.StatusError, OSError, ValueError) as error:
            _log.warning("maypole: the state %r that the executor holds cannot "
                         "be used: %s", self.name, error)
            return None
        for commit in sorted(self._found.commits(), reverse=True):
            rest = self.load(commit)
            if rest is not None:
                return rest
        return None

    def load(self, commit: Optional[Commit]) -> Any:
        """As load_newest(), for the given commit, if load_newest() has found it."""
        found = self._found
        half = found.commits().get(commit) if found is not None and commit is not None else None
        if found is None or half is None:
            return None
        try:
            spans, rest = self._read(found, half)
        except _Damaged as error:
            _log.warning("maypole: %s of the state %r cannot be used: %s",
                         commit, self.name, error)
            for handler in self._handlers.values():
                handler.restore()
            self._loaded = {}
            return None
        self.commit = commit
        self._loaded = {name: [digest for _, _, digest in of_handler]
                        for name, of_handler in spans.items()}
        self.restored_bytes += sum(size for of_handler in spans.values()
                                   for _, size, _ in of_handler)
        return rest

    def _read(self, memory: CommitMemory,
              half: int) -> tuple[dict[str, list[Span]], Any]:
        """Returns (the handlers' spans, rest)."""
        found = {}
        try:
            parts, rest = objects.loads(memory.description(half))
        except ValueError as error:
            raise _Damaged(str(error)) from error
        for name, handler in self._handlers.items():
            if name not in parts:
                raise ValueError(
                    f"the state that is kept of this job has no {name!r}: the "
                    "job was started by another script; give this one another "
                    "MAYPOLE_JOB")
            skeleton, spans = parts[name]
            handler.begin()
            tensors, _, complete = _targets(name, handler, skeleton)
            for (at, _, digest), tensor in zip(spans, tensors):
                _read_tensor(memory, half, at, tensor, digest)
            if not complete:
                handler.load(put_back(skeleton, tensors))
            found[name] = spans
        return found, rest

    # --- All ranks --------------------------------------------------------------

    def sync(self, plan: Plan) -> None:
        """Gives all ranks the tensors of rank plan.root. All ranks must call it."""
        is_root = basics.rank() == plan.root
        header = None
        if is_root:
            header = {name: self._described_now(handler, plan.compare)
                      for name, handler in self._handlers.items()}
        header = broadcast_object(header, plan.root, self._operation("layout"))
        parts = []
        for name, handler in self._handlers.items():
            handler.begin()
            skeleton, digests = header[name]
            tensors, own, complete = _targets(name, handler, skeleton)
            have = [is_root] * len(tensors)
            if not is_root and own and digests is not None:
                mine = self._digests(name, tensors)
                have = [a == b for a, b in zip(mine, digests)]
            parts.append((handler, skeleton, tensors, have, complete))
        every = [tensor for part in parts for tensor in part[2]]
        have = [h for part in parts for h in part[3]]
        missing = self._missing_anywhere(have, plan.compare)
        broadcast_parameters([(self._operation(i), every[i]) for i in missing],
                             plan.root)
        self.broadcast_bytes += sum(
            every[i].numel() * every[i].element_size() for i in missing)
        for handler, skeleton, tensors, _, complete in parts:
            if not complete:
                handler.load(put_back(skeleton, tensors))

    def _operation(self, what: Any) -> str:
        return f"maypole.elastic.{self.name}.{what}"

    def _described_now(self, handler: Any, compare: bool) -> Any:
        tensors: list[torch.Tensor] = []
        skeleton = take_out(handler.contents(), tensors)
        return skeleton, [_digest(t) for t in tensors] if compare else None

    def _digests(self, name: str,
                 tensors: list[torch.Tensor]) -> list[Optional[int]]:
        if self.started:
            return [_digest(tensor) for tensor in tensors]
        # Without a load the values are the initial ones, which are of no use.
        return [*self._loaded.get(name, [])] or [None] * len(tensors)

    def _missing_anywhere(self, have: list[bool], compare: bool) -> list[int]:
        """The numbers of the tensors that at least one rank does not have."""
        if basics.size() == 1 or not have:
            return []
        if not compare:
            return list(range(len(have)))
        missing = torch.tensor([0 if h else 1 for h in have],
                               dtype=torch.uint8, device="cpu")
        missing = allreduce(missing, op=Max, name=self._operation("missing"))
        return missing.nonzero().flatten().tolist()


class _Damaged(RuntimeError):
    """The memory does not hold the bytes that were committed."""


def _targets(name: str, handler: Any,
             wanted: Any) -> tuple[list[torch.Tensor], bool, bool]:
    """Returns where to load the values of `wanted`.

    Returns the tensors to write them to, whether these are those of the
    handler's value, and whether nothing else has to be loaded then.
    """
    tensors: list[torch.Tensor] = []
    own = take_out(handler.contents(), tensors)
    mine, others = list(places(own)), list(places(wanted))
    if mine == others:
        return tensors, True, _equal(own, wanted)
    if handler.fixed:
        raise ValueError(
            f"the state of this job does not fit {name!r} here: "
            f"{_difference(mine, others)}; all processes of a job must run the "
            "same script, and a changed one needs another MAYPOLE_JOB while the "
            "executors keep the state of the old one")
    return handler.new_tensors(specs_of(wanted)), False, False


def _equal(own: Any, wanted: Any) -> bool:
    try:
        return bool(own == wanted)
    except (TypeError, ValueError, RuntimeError):  # for example, an array in it
        return False


def _difference(mine: list[Any], others: list[Any]) -> str:
    for number in range(max(len(mine), len(others))):
        a = mine[number] if number < len(mine) else None
        b = others[number] if number < len(others) else None
        if a != b:
            break
    return f"it has {_place_text(b)}, this process has {_place_text(a)}"


def _place_text(place: Any) -> str:
    if place is None:
        return "no further tensor"
    path, at = place
    return f"{'/'.join(str(key) for key in path)}: {at}"


# --- Tensors and memory ---------------------------------------------------------


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _view(memory: CommitMemory, half: int, at: int,
          like: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(memory.memory, dtype=like.dtype, count=like.numel(),
                            offset=memory.offset(half, at)).view(like.shape)


def _write_tensor(memory: CommitMemory, half: int, at: int,
                  tensor: torch.Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return _digest(tensor)
    if _is_flat(tensor):
        return memory.write(half, at, tensor.data_ptr(), size)
    _view(memory, half, at, tensor).copy_(tensor)
    return _native.library().copy_digest(None, memory.address(half, at), size)


def _read_tensor(memory: CommitMemory, half: int, at: int, tensor: torch.Tensor,
                 digest: int) -> None:
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return
    flat = _is_flat(tensor)
    seen = _native.library().copy_digest(tensor.data_ptr() if flat else None,
                                         memory.address(half, at), size)
    if seen != digest:
        raise _Damaged("it was overwritten while it was read")
    if not flat:
        tensor.copy_(_view(memory, half, at, tensor))


def _digest(tensor: torch.Tensor) -> int:
    flat = tensor.detach().cpu().contiguous()
    return _native.library().copy_digest(
        None, flat.data_ptr(), flat.numel() * flat.element_size())
