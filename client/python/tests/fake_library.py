"""A libmaypole in Python, for ranks that are threads of one process.

`FakeLibrary(size)` goes in the library's place by `maypole._native.use()`;
`run_ranks(fake, function)` calls `function(rank)` on one thread per rank. An
operation is executed by the rank that submits it last. Sum, average, gather,
broadcast and barrier are real; a dtype or shape mismatch fails on all ranks.

It checks the memory contract of maypole.h: the submitters' addresses are read
and written only when the operation runs, so a binding that lets a tensor go
too early shows.
"""

import ctypes
import itertools
import mmap
import threading
import time

import torch

from maypole import _native

_TORCH_DTYPES = {
    _native.UINT8: torch.uint8,
    _native.INT8: torch.int8,
    _native.INT16: torch.int16,
    _native.INT32: torch.int32,
    _native.INT64: torch.int64,
    _native.FLOAT16: torch.float16,
    _native.BFLOAT16: torch.bfloat16,
    _native.FLOAT32: torch.float32,
    _native.FLOAT64: torch.float64,
    _native.BOOL: torch.bool,
}


def _view(address, shape, dtype):
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


class _Submission:

    def __init__(self, rank, arguments):
        self.rank = rank
        (self.kind, self.dtype, self.op, self.root, self.shape, self.prescale,
         self.postscale, self.name, self.input, self.output) = arguments
        self.shape = tuple(self.shape)
        self.status = None
        self.text = ""
        self.gathered = None

    def tensor(self, address):
        return _view(address, self.shape, _TORCH_DTYPES[self.dtype])


class FakeLibrary:
    """See the head of this file."""

    def __init__(self, size):
        self.path = "fake"
        self._size = size
        self._thread = threading.local()
        self._lock = threading.Condition()
        self._handles = {}
        self._next_handle = itertools.count(1)
        self._waiting = {}  # (kind, name or number) -> {rank: submission}
        self._unnamed = {}  # (rank, kind) -> count
        self.initialized = True
        self.completed = []  # names, in the order of completion
        self.submitted = []  # (rank, name)
        self.released = []
        self.awaited = {}  # name -> whether its submitter waits at once
        self.arena = {}  # address -> memory
        self.arena_limit = 1 << 30
        self.arena_operations = []  # names
        self.wait_statuses = []  # handed out by wait() before the outcome

    # --- identity -----------------------------------------------------------
    def set_rank(self, rank):
        self._thread.rank = rank

    def rank(self):
        return getattr(self._thread, "rank", 0) if self.initialized else -1

    def size(self):
        return self._size if self.initialized else -1

    local_rank, local_size = rank, size

    def cross_rank(self):
        return 0 if self.initialized else -1

    def cross_size(self):
        return 1 if self.initialized else -1

    def is_homogeneous(self):
        return True

    def is_initialized(self):
        return self.initialized

    def init(self):
        self.initialized = True
        return _native.OK

    def shutdown(self):
        self.initialized = False
        return _native.OK

    def version(self):
        return "0.1.0"

    def last_error(self):
        return getattr(self._thread, "error", "")

    def counter(self, name):
        return {
            "completed": len(self.completed),
            "arena_bytes": self._arena_bytes(),
            "arena_operations": len(self.arena_operations),
        }.get(name, -1)

    # --- arena --------------------------------------------------------------
    def allocate(self, size):
        if not self.initialized:
            raise _native.StatusError(_native.FAILED_PRECONDITION,
                                      "Maypole has not been initialized")
        with self._lock:
            if self._arena_bytes() + size > self.arena_limit:
                raise _native.StatusError(_native.RESOURCE_EXHAUSTED,
                                          "the arena is full")
            memory = mmap.mmap(-1, size)  # page aligned, zeroed
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self.arena[address] = memory
        return address

    def free(self, address):
        # Called by a finalizer, which may run while this thread has the lock.
        del self.arena[address]
        return _native.OK

    def _arena_bytes(self):
        return sum(len(memory) for memory in list(self.arena.values()))

    def _in_arena(self, submission):
        return (submission.input == submission.output
                and submission.prescale == 1.0 and submission.input % 64 == 0
                and any(start <= submission.input < start + len(memory)
                        for start, memory in list(self.arena.items())))

    # --- operations ---------------------------------------------------------
    def submit(self, *arguments):
        arguments, awaited = arguments[:10], arguments[10]
        if not self.initialized:
            raise _native.StatusError(_native.FAILED_PRECONDITION,
                                      "Maypole has not been initialized")
        submission = _Submission(self.rank(), arguments)
        with self._lock:
            key = (submission.kind, submission.name)
            if submission.name is None:
                counter = (submission.rank, submission.kind)
                self._unnamed[counter] = self._unnamed.get(counter, 0) + 1
                key = (submission.kind, self._unnamed[counter])
            present = self._waiting.setdefault(key, {})
            if submission.rank in present:
                raise _native.StatusError(_native.ALREADY_EXISTS,
                                          f"{submission.name!r} is pending")
            present[submission.rank] = submission
            self.submitted.append((submission.rank, submission.name))
            self.awaited[submission.name] = awaited
            handle = next(self._next_handle)
            self._handles[handle] = submission
            if len(present) == self._size:
                del self._waiting[key]
                self._execute([present[r] for r in range(self._size)])
                self._lock.notify_all()
        return handle

    def _execute(self, ranks):
        first = ranks[0]
        for other in ranks[1:]:
            same = (first.dtype == other.dtype and first.op == other.op
                    and (first.kind == _native.ALLGATHER
                         or first.shape == other.shape))
            if not same:
                for r in ranks:
                    r.status = _native.FAILED_PRECONDITION
                    r.text = (f"{first.name}: rank 0 has {first.shape}, rank "
                              f"{other.rank} has {other.shape}")
                return
        {
            _native.ALLREDUCE: self._allreduce,
            _native.ALLGATHER: self._allgather,
            _native.BROADCAST: self._broadcast,
            _native.BARRIER: lambda ranks: None,
        }[first.kind](ranks)
        for r in ranks:
            r.status = _native.OK
        if all(self._in_arena(r) for r in ranks):
            self.arena_operations.append(first.name)
        self.completed.append(first.name)

    def _allreduce(self, ranks):
        total = None
        for r in ranks:
            value = r.tensor(r.input).clone()
            if r.prescale != 1.0:
                value = value * r.prescale
            total = value if total is None else total + value
        if ranks[0].op == 0:
            total = (total / len(ranks) if total.dtype.is_floating_point else
                     torch.div(total, len(ranks), rounding_mode="trunc"))
        if ranks[0].postscale != 1.0:
            total = total * ranks[0].postscale
        for r in ranks:
            r.tensor(r.output).copy_(total)

    def _allgather(self, ranks):
        gathered = torch.cat([r.tensor(r.input) for r in ranks])
        for r in ranks:
            r.gathered = gathered.clone()

    def _broadcast(self, ranks):
        root = ranks[ranks[0].root]
        value = root.tensor(root.input).clone()
        for r in ranks:
            r.tensor(r.output).copy_(value)

    def wait(self, handle, timeout_ms):
        with self._lock:
            if self.wait_statuses:
                return self.wait_statuses.pop(0)
            submission = self._handles[handle]
            if not self._lock.wait_for(lambda: submission.status is not None,
                                       timeout_ms / 1000):
                return _native.DEADLINE_EXCEEDED
            self._thread.error = submission.text
            return submission.status

    def poll(self, handle):
        with self._lock:
            if handle not in self._handles:
                return _native.NOT_FOUND, False
            return _native.OK, self._handles[handle].status is not None

    def result(self, handle):
        gathered = self._handles[handle].gathered
        return (gathered.data_ptr(), gathered.numel() * gathered.element_size(),
                gathered.shape[0])

    def release(self, handle):
        with self._lock:
            if self._handles.pop(handle, None) is None:
                return _native.NOT_FOUND
            self.released.append(handle)
        return _native.OK

    def pending(self):
        """Handles not yet released."""
        return len(self._handles)

    def wait_completed(self, name, timeout=30):
        """Blocks until the operation `name` has completed; False: timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: name in self.completed, timeout)


def run_ranks(fake, function):
    """function(rank) on a thread per rank; the list of results.

    The first exception of a rank is raised here.
    """
    results = [None] * fake.size()
    errors = []

    def run(rank):
        fake.set_rank(rank)
        try:
            results[rank] = function(rank)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True)
        for rank in range(fake.size())
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads) and not errors:
        threads[0].join(0.05)
        threads[-1].join(0.05)
        assert time.monotonic() < deadline, "a rank is stuck"
    if errors:
        raise errors[0]
    return results
