"""A libmaypole in Python, for ranks that are threads of one process.

`maypole._native.use(FakeLibrary(size))` replaces the library;
`run_ranks(fake, function)` calls `function(rank)` on one thread per rank. An
operation is executed by the rank that submits it last. All collectives, process
sets, groups and joins are real; a dtype or shape mismatch fails on all ranks.

It checks the memory contract of maypole.h: the submitters' addresses are read
and written only when the operation runs, so a binding that releases a tensor
too early fails the test. An operation with a stream (CUDA tensors) reads its
input when it is submitted and writes its output in copy_result() only.
"""

import collections
import ctypes
import itertools
import mmap
import re
import threading
import time
import unittest

import fake_collectives
from maypole import _native


_QUESTION = re.compile(r":(layouts|start|step)\b")


def _is_question(name):
    return name is not None and _QUESTION.search(name) is not None


class FakeLibrary:
    """See the head of this file."""

    def __init__(self, size):
        self.path = "fake"
        self._size = size
        self._thread = threading.local()
        self._lock = threading.Condition()
        self._handles = {}
        self._next_handle = itertools.count(1)
        # (process set, kind, name or number) -> {rank: submission}
        self._waiting = {}
        self._unnamed = {}  # (rank, process set, kind) -> count
        self._sets = {0: list(range(size))}
        self._set_requests = []  # {rank: (ranks or id, submission)}, in order
        self._next_set = itertools.count(1)
        self._joined = {}  # rank -> submission, in the order of joining
        self.initialized = True
        self.change_wanted_by = {}  # rank -> how many ranks want a change
        # Names, in the order of completion. Not what the ranks of a
        # DistributedOptimizer ask each other, which is no tensor of the user's.
        self.completed = []
        self.submitted = []  # (rank, name), without that, too
        self.groups = []  # the names of each group
        self.released = []
        self.awaited = {}  # name -> whether its submitter waits at once
        self.arena = {}  # address -> memory
        self.arena_limit = 1 << 30
        self.arena_operations = []  # names
        self.gpu_memory = {}  # address -> memory; host memory stands for it
        self.gpus = []  # of each allocate_on_gpu()
        self.freed_on_gpu = []  # (address, streams) of each free_on_gpu()
        self.streams = {}  # (rank, name) -> stream at submission, or None
        self.copies = []  # (name, address, stream) of each copy_result()
        self.copy_error = None  # text with which copy_result() fails
        self.wait_timeouts = []
        self.finished = []  # (rank, finished) of each set_finished()
        self.wait_statuses = []  # handed out by wait() before the outcome

    # --- identity -----------------------------------------------------------
    def set_rank(self, rank):
        self._thread.rank = rank

    @property
    def counts(self):
        """Of each rank, as a Library's are of its process."""
        if not hasattr(self._thread, "counts"):
            self._thread.counts = collections.Counter()
        return self._thread.counts

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

    leave_epoch = shutdown
    abandon_epoch = shutdown

    def set_finished(self, finished):
        self.finished.append((self.rank(), bool(finished)))

    def change_wanted(self):
        return self.change_wanted_by.get(self.rank(), 0)

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

    def allocate_on_gpu(self, size, gpu):
        with self._lock:
            if sum(map(len, self.gpu_memory.values())) + size > self.arena_limit:
                raise _native.StatusError(_native.RESOURCE_EXHAUSTED,
                                          "no memory can be shared")
            memory = mmap.mmap(-1, size)
            memory.write(b"\xa5" * size)  # not zeroed
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self.gpu_memory[address] = memory
            self.gpus.append(gpu)
        return address

    def free_on_gpu(self, address, streams):
        # As free().
        del self.gpu_memory[address]
        self.freed_on_gpu.append((address, streams))
        return _native.OK

    def _arena_bytes(self):
        return sum(len(memory) for memory in list(self.arena.values()))

    def _in_arena(self, submission):
        return (submission.kind == _native.ALLREDUCE
                and submission.input == submission.output
                and submission.prescale == 1.0 and submission.input % 64 == 0
                and any(start <= submission.input < start + len(memory)
                        for start, memory in list(self.arena.items())))

    # --- operations ---------------------------------------------------------
    def submit(self, *arguments):
        return self._submit_all([arguments])[0]

    def submit_group(self, members):
        self.groups.append([member[7] for member in members])
        return self._submit_all(members)

    def _submit_all(self, members):
        self._check_initialized()
        submissions = [
            fake_collectives.Submission(self.rank(), member)
            for member in members
        ]
        with self._lock:
            for s in submissions:
                self._check(s)
            handles = [self._enqueue(s) for s in submissions]
            self._execute_complete()
        return handles

    def _check_initialized(self):
        if not self.initialized:
            raise _native.StatusError(_native.FAILED_PRECONDITION,
                                      "Maypole has not been initialized")

    def _check(self, submission):
        name, number = submission.name, submission.process_set
        refuse = lambda text: _native.StatusError(_native.INVALID_ARGUMENT,
                                                  f"{name!r}: {text}")
        if number not in self._sets:
            raise refuse(f"there is no process set {number}")
        ranks = self._sets[number]
        if submission.rank not in ranks:
            raise refuse(f"rank {submission.rank} is not in it")
        if submission.op == fake_collectives.ADASUM and not submission.tensor().dtype.is_floating_point:
            raise refuse(f"Adasum needs a floating point tensor, this one is {submission.tensor().dtype}")
        splits = submission.splits
        if splits is not None and (len(splits) != len(ranks)
                                   or sum(splits) != submission.shape[0]):
            raise refuse(f"splits {splits}")
        key = (number, submission.kind, name)
        if name is not None and submission.rank in self._waiting.get(key, {}):
            raise _native.StatusError(_native.ALREADY_EXISTS,
                                      f"{name!r} is pending")

    def _enqueue(self, submission):
        rank, number = submission.rank, submission.process_set
        if not _is_question(submission.name):
            self.submitted.append((rank, submission.name))
        self.awaited[submission.name] = submission.awaited
        self.streams[rank, submission.name] = submission.stream
        if submission.kind == _native.JOIN:
            self._joined[rank] = submission
            return self._handle_of(submission)
        which = submission.name
        if which is None:
            counter = (rank, number, submission.kind)
            which = self._unnamed[counter] = self._unnamed.get(counter, 0) + 1
        key = (number, submission.kind, which)
        self._waiting.setdefault(key, {})[rank] = submission
        return self._handle_of(submission)

    def _handle_of(self, submission):
        handle = next(self._next_handle)
        self._handles[handle] = submission
        return handle

    def _execute_complete(self):
        """Runs all operations that all ranks have submitted or have joined."""
        for key, present in list(self._waiting.items()):
            ranks = self._sets[key[0]]
            if all(rank in present or rank in self._joined for rank in ranks):
                del self._waiting[key]
                self._execute([present[r] for r in ranks if r in present],
                              ranks)
        if len(self._joined) == self._size:
            last = list(self._joined)[-1]
            for submission in self._joined.values():
                submission.answer = last
                submission.status = _native.OK
            self._joined = {}
        self._lock.notify_all()

    def _execute(self, submissions, ranks):
        fake_collectives.execute(submissions, ranks)
        if submissions[0].status == _native.OK:
            if all(self._in_arena(s) for s in submissions):
                self.arena_operations.append(submissions[0].name)
            if not _is_question(submissions[0].name):
                self.completed.append(submissions[0].name)

    # --- process sets -------------------------------------------------------
    def process_set_add(self, ranks):
        if not ranks or not all(0 <= r < self._size for r in ranks):
            raise _native.StatusError(_native.INVALID_ARGUMENT,
                                      f"ranks {list(ranks)}")
        return self._request_set(list(ranks))

    def process_set_remove(self, process_set):
        return self._request_set(process_set)

    def process_set_ranks(self, process_set):
        return self._sets.get(process_set) if self.initialized else None

    def _request_set(self, wanted):
        """Returns a handle. The n-th request runs when all ranks have made n."""
        self._check_initialized()
        submission = fake_collectives.Submission(self.rank())
        with self._lock:
            request = next((r for r in self._set_requests
                            if submission.rank not in r), None)
            if request is None:
                request = {}
                self._set_requests.append(request)
            request[submission.rank] = (wanted, submission)
            if len(request) == self._size:
                self._answer(list(request.values()))
                self._lock.notify_all()
            return self._handle_of(submission)

    def _answer(self, request):
        wanted = request[0][0]
        status, text, answer = _native.OK, "", 0
        if any(other != wanted for other, _ in request):
            status, text = _native.FAILED_PRECONDITION, "ranks differ"
        elif isinstance(wanted, int):
            del self._sets[wanted]
        elif wanted in self._sets.values():
            status, text = _native.INVALID_ARGUMENT, f"{wanted} is a set"
        else:
            answer = next(self._next_set)
            self._sets[answer] = wanted
        for _, submission in request:
            submission.answer = answer
            submission.fail(status, text)

    def wait(self, handle, timeout_ms):
        with self._lock:
            self.wait_timeouts.append(timeout_ms)
            if self.wait_statuses:
                return self.wait_statuses.pop(0)
            submission = self._handles[handle]
            if not self._lock.wait_for(lambda: submission.status is not None,
                                       timeout_ms / 1000
                                       if timeout_ms >= 0 else None):
                return _native.DEADLINE_EXCEEDED
            self._thread.error = submission.text
            return submission.status

    def poll(self, handle):
        with self._lock:
            if handle not in self._handles:
                return _native.NOT_FOUND, False
            return _native.OK, self._handles[handle].status is not None

    def result(self, handle):
        submission = self._handles[handle]
        gathered = submission.gathered
        if gathered is None:
            return 0, 0, submission.answer
        address = gathered.data_ptr() if submission.stream is None else 0
        return (address, gathered.numel() * gathered.element_size(),
                gathered.shape[0])

    def copy_result(self, handle, to_address, stream):
        submission = self._handles[handle]
        assert submission.stream is not None, "its tensors are in host memory"
        assert submission.status == _native.OK, submission.status
        self.copies.append((submission.name, to_address, stream))
        if self.copy_error is not None:
            raise _native.StatusError(_native.INTERNAL, self.copy_error)
        submission.copy_result(to_address)

    def received_splits(self, handle, count):
        received = self._handles[handle].received
        assert len(received) == count, (received, count)
        return received

    def release(self, handle):
        with self._lock:
            if self._handles.pop(handle, None) is None:
                return _native.NOT_FOUND
            self.released.append(handle)
        return _native.OK

    def pending(self):
        """Number of handles that are not released."""
        return len(self._handles)

    def wait_completed(self, name, timeout=30):
        """Waits until operation `name` has completed; False after a timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: name in self.completed, timeout)


class TwoRanks(unittest.TestCase):
    """Tests with two ranks."""

    def both(self, function):
        """What function(rank) returns on each. `fake` is their library."""
        self.fake = FakeLibrary(2)
        _native.use(self.fake)
        results = run_ranks(self.fake, function)
        self.assertEqual(self.fake.pending(), 0)
        return results


def run_ranks(fake, function):
    """Runs function(rank) on a thread per rank; returns the list of results.

    Raises the first rank's exception, if any.
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
