"""ctypes binding of libmaypole (client/maypole.h), and nothing more.

`library()` loads libmaypole.so once per process and returns a `Library`. The
rest of the package sees the C ABI only through that object, so that a test can
put a fake in its place with `use()`.

The file is the one that MAYPOLE_LIBRARY names, otherwise the one beside the
package (maypole/lib/libmaypole.so). This module needs CPython 3.9 or newer and
no framework.

Thread contract: everything here may be called from any thread. ctypes releases
the GIL during each call. Callers must wait in a loop of short waits, see
`maypole.common.operations`, because Python's signal handlers run only between
calls.

Errors: most functions return the status as a plain int (gRPC's codes). Those
that return something else (`submit`, `result`, `allocate`,
`allocate_on_gpu`, `process_set_add`, ...), and `copy_result`, raise StatusError.
"""

import collections
import ctypes
import itertools
import os
import struct
from collections.abc import Sequence
from typing import Any, Callable, Optional

# maypole_status
OK = 0
CANCELLED = 1
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

# maypole_dtype
UINT8, INT8, UINT16, INT16, INT32, INT64 = 0, 1, 2, 3, 4, 5
FLOAT16, FLOAT32, FLOAT64, BOOL, BFLOAT16 = 6, 7, 8, 9, 10
# By the frameworks' names.
DTYPES = {name: number for number, name in enumerate((
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16"))}

# maypole_kind
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL = 0, 1, 2, 3
REDUCESCATTER, BARRIER, JOIN = 4, 5, 6

# maypole_device
CPU, CUDA = 0, 1

MAX_DIMS = 8

# MAYPOLE_WAIT_INTERRUPTIBLE: no time limit, but returns every 0.1 s while data
# moves.
WAIT_INTERRUPTIBLE = -2
_LONGEST_WAIT_MS = 1 << 30


def wait_or_give_up(milliseconds: int) -> int:
    """MAYPOLE_WAIT_OR_GIVE_UP: the same with a time limit, after which the caller must do nothing more in the job."""
    return WAIT_INTERRUPTIBLE - max(1, min(milliseconds, _LONGEST_WAIT_MS))


# struct maypole_operation as bytes; packing is several times cheaper than
# filling a ctypes.Structure and needs no memory shared between calls.
#   size_t struct_size; int32 kind, dtype, op, device, process_set, root, dims,
#   awaited; int64 shape[8]; double prescale, postscale; void* name, input,
#   output, splits; int32 splits_count, reserved; void* stream
OPERATION = struct.Struct("@N8i8q2dPPPPiiP")
_pack = OPERATION.pack
_SHAPE_PADDING = tuple((0,) * (MAX_DIMS - dims) for dims in range(MAX_DIMS + 1))

# maypole_done
_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)

# struct maypole_exchange and its functions.
_PUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                        ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                        ctypes.c_void_p, ctypes.c_int)


class _Exchange(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("context", ctypes.c_void_p),
                ("put", _PUT), ("get", _GET)]


# Limit of the cache of encoded names (every step uses the same names). A full
# cache is emptied, so that it stays bounded in a program that never repeats a
# name.
_MAX_CACHED_NAMES = 16384

_INT, _I32, _I64, _U64 = ctypes.c_int, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
_ADDRESS, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_ADDRESS_OUT, _INT_OUT, _I64_OUT = ctypes.POINTER(_ADDRESS), ctypes.POINTER(_INT), ctypes.POINTER(_I64)
_RANKS = ctypes.POINTER(_I32)

# The functions of maypole.h, and their parameters.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "submit": (_ADDRESS, _ADDRESS),
    "submit_group": (_ADDRESS, _I32, _ADDRESS),
    "poll": (_I64, _INT_OUT),
    "on_done": (_I64, _DONE, _ADDRESS),
    "result": (_I64, _ADDRESS_OUT, _I64_OUT, _I64_OUT),
    "copy_result": (_I64, _ADDRESS, _ADDRESS),
    "received_splits": (_I64, _I64_OUT, _I32),
    "allocate": (_U64, _ADDRESS_OUT),
    "allocate_on_gpu": (_U64, _I32, _ADDRESS_OUT),
    "free_on_gpu": (_ADDRESS, _ADDRESS_OUT, _I32),
    "process_set_add": (_RANKS, _I32, _I64_OUT),
    "process_set_add_by_members": (_RANKS, _I32, _I64_OUT),
    "process_set_remove": (_I32, _I64_OUT),
    "process_set_ranks": (_I32, _RANKS, _I32),
    "keep_state": (_TEXT, _INT),
    "find_state": (_TEXT, _INT_OUT),
    "drop_state": (_TEXT,),
    "set_exchange": (_ADDRESS,),
    "counter": (_TEXT,),
    **dict.fromkeys(("is_initialized", "is_homogeneous", "last_error", "version"), ()),
}
# Functions that Library exposes unchanged. copy_digest(to, source, bytes) copies, if `to` is not None, and returns a
# digest that is equal for equal bytes in all processes of the job; start_timeline() waits until the timeline is on,
# stop_timeline() until its file is complete; free() is also allowed after shutdown().
_DIRECT: dict[str, tuple[Any, ...]] = {
    "wait": (_I64, _INT),
    "release": (_I64,),
    "free": (_ADDRESS,),
    "set_finished": (_INT,),
    "copy_digest": (_ADDRESS, _ADDRESS, _U64),
    "start_timeline": (_TEXT, _I32),
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "init", "shutdown",
                     "leave_epoch", "abandon_epoch", "change_wanted", "stop_timeline"), ()),
}
# Return types other than int.
_RESULTS = {"set_finished": None, "copy_digest": _U64, "last_error": _TEXT, "version": _TEXT, "counter": _I64}

# Capacity of the first call of maypole_process_set_ranks(), in ranks.
_LIKELY_RANKS = 64

# The arguments of Library.packed().
Arguments = tuple[Any, ...]


class StatusError(Exception):
    """A maypole_status other than MAYPOLE_OK; `.code` is the status."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Library:
    """The functions of maypole.h, with Python's types.

    counts: counters that are equal on all ranks: optimizers made, join()s
    ended. (They are here so that a fake library can count for several ranks.)
    """

    __slots__ = ("path", "counts", "_lib", "_exchange", "_submit", "_submit_group", "_names", "_done", "_when_done",
                 "_callbacks", *_DIRECT)

    def __init__(self, path: str):
        self.path = path
        self.counts: dict[Any, int] = collections.Counter()
        self._lib = lib = ctypes.CDLL(path)
        for name, types in (_FUNCTIONS | _DIRECT).items():
            function = getattr(lib, "maypole_" + name)
            function.argtypes, function.restype = types, _RESULTS.get(name, _INT)
            if name in _DIRECT:
                setattr(self, name, function)
        self._submit, self._submit_group = lib.maypole_submit, lib.maypole_submit_group
        self._names: dict[str, tuple[Any, int]] = {}
        self._when_done: dict[int, Callable[[], None]] = {}
        self._callbacks = itertools.count(1)
        self._done = _DONE(self._call)

    def is_initialized(self) -> bool:
        return bool(self._lib.maypole_is_initialized())

    def is_homogeneous(self) -> bool:
        return bool(self._lib.maypole_is_homogeneous())

    def set_exchange(self, put: Callable[[str, str], None],
                     get: Callable[[str, int], Optional[str]],
                     why: Callable[[], str] = lambda: "nobody has published it") -> None:
        """Sets the functions that carry values from rank 0 to the other nodes during init().

        They are put(key, value) and get(key, timeout in milliseconds). get()
        returns None if the key has not been put in time; why() then returns
        the reason. If one of them raises, init() fails with that error.
        """

        @_PUT
        def c_put(_: Any, key: bytes, value: bytes, error: int, error_bytes: int) -> int:
            try:
                put(key.decode("utf-8"), value.decode("utf-8"))
            except Exception as e:  # must not pass through C
                _fill(error, error_bytes, _described(e))
                return UNAVAILABLE
            return OK

        @_GET
        def c_get(_: Any, key: bytes, timeout_ms: int, value: int, value_bytes: int, error: int,
                  error_bytes: int) -> int:
            try:
                found = get(key.decode("utf-8"), timeout_ms)
            except Exception as e:  # must not pass through C
                _fill(error, error_bytes, _described(e))
                return UNAVAILABLE
            if found is None:
                _fill(error, error_bytes, why())
                return DEADLINE_EXCEEDED
            _fill(value, value_bytes, found)
            return OK

        exchange = _Exchange(ctypes.sizeof(_Exchange), None, c_put, c_get)
        self._check(self._lib.maypole_set_exchange(ctypes.byref(exchange)))
        self._exchange = exchange  # must live as long as C may call it

    def submit(self, *arguments: Any) -> int:
        """Submits an operation and returns its handle. Arguments are those of packed(). Raises StatusError."""
        operation, kept = self.packed(*arguments)
        handle = ctypes.c_int64()
        self._check(self._submit(operation, ctypes.addressof(handle)))
        del kept
        return handle.value

    def submit_group(self, members: Sequence[Arguments]) -> Sequence[int]:
        """Submits all of `members` or, if one is refused, none of them.

        Each member is a tuple of packed()'s arguments. Returns a handle for
        each. Raises StatusError, whose text names the refused member.
        """
        packed, kept = zip(*(self.packed(*member) for member in members))
        handles = (ctypes.c_int64 * len(packed))()
        self._check(self._submit_group(b"".join(packed), len(packed), ctypes.addressof(handles)))
        del kept
        return list(handles)

    def packed(self,
                kind: int,
                dtype: int,
                op: int,
                root: int,
                shape: Sequence[int],
                prescale: float,
                postscale: float,
                name: Optional[str],
                input_address: int,
                output_address: int,
                awaited: bool = False,
                process_set: int = 0,
                splits: Optional[Sequence[int]] = None,
                stream: Optional[int] = None) -> tuple[bytes, Any]:
        """Returns (maypole_operation with these members, objects to keep alive until it is submitted).

        `shape` must have at most MAX_DIMS entries. The memory at the addresses
        must live until the operation has ended. `awaited`: this thread calls
        wait() next, so no other thread has to be woken.

        `stream`: None if the addresses are host memory. If they are memory of a
        CUDA device, the stream (a cudaStream_t; 0: the legacy default stream)
        in whose order the input is read. Then only copy_result() writes the
        output, which must live until that has returned.
        """
        encoded, name_address = self._encode(name)
        numbers, count = None, 0
        if splits is not None:
            count = len(splits)
            numbers = (ctypes.c_int64 * count)(*splits)
        dims = len(shape)
        operation = _pack(OPERATION.size, kind, dtype, op,
                          CPU if stream is None else CUDA, process_set, root,
                          dims, awaited, *shape, *_SHAPE_PADDING[dims],
                          prescale, postscale, name_address, input_address,
                          output_address,
                          ctypes.addressof(numbers) if numbers else 0, count, 0,
                          stream or 0)
        return operation, (encoded, numbers)

    def _encode(self, name: Optional[str]) -> tuple[Any, int]:
        if name is None:
            return None, 0
        entry = self._names.get(name)
        if entry is None:
            encoded = ctypes.create_string_buffer(name.encode("utf-8"))
            entry = (encoded, ctypes.addressof(encoded))
            if len(self._names) >= _MAX_CACHED_NAMES:
                self._names.clear()
            self._names[name] = entry
        return entry

    def poll(self, handle: int) -> tuple[int, bool]:
        """Returns (status, whether the operation has ended)."""
        done = ctypes.c_int()
        status = self._lib.maypole_poll(handle, done)
        return status, bool(done.value)

    def call_when_done(self, handle: int, function: Callable[[], None]) -> None:
        """Makes the library's completion thread call `function`, once, when the operation has ended.

        `function` must not raise, and must not wait. Raises StatusError, and does not call it, if the operation
        has a function already.
        """
        number = next(self._callbacks)
        self._when_done[number] = function
        status = self._lib.maypole_on_done(handle, self._done, number)
        if status != OK:
            del self._when_done[number]
            raise StatusError(status, self.last_error())

    def _call(self, context: int, handle: int, status: int) -> None:
        self._when_done.pop(context)()

    def result(self, handle: int) -> tuple[int, int, int]:
        """Returns (address, bytes, first dimension) of an operation's result.

        The operation must have ended. The memory is valid until
        `release(handle)`. The address is 0 for an operation on CUDA tensors;
        see copy_result(). Raises StatusError.
        """
        data = ctypes.c_void_p()
        size = ctypes.c_int64()
        first_dim = ctypes.c_int64()
        self._check(self._lib.maypole_result(handle, data, size, first_dim))
        return data.value or 0, size.value, first_dim.value

    def copy_result(self, handle: int, to_address: int, stream: int) -> None:
        """Copies the result of an operation on CUDA tensors to `to_address`.

        The operation must have ended successfully. The copy is made in the
        order of `stream` (0: the legacy default stream). When the call returns,
        the copy is done; with MAYPOLE_ENABLE_ASYNC_COMPLETION=1 it is only
        enqueued. `to_address`: memory of the device, of result()'s size; 0: the
        operation's output (not for allgather and alltoall, which have none).
        Raises StatusError.
        """
        self._check(self._lib.maypole_copy_result(handle, to_address, stream))

    def received_splits(self, handle: int, count: int) -> list[int]:
        """Returns how many rows of an alltoall came from each of `count` ranks.

        Raises StatusError.
        """
        splits = (ctypes.c_int64 * count)()
        self._check(self._lib.maypole_received_splits(handle, splits, count))
        return list(splits)

    def process_set_add(self, ranks: Sequence[int]) -> int:
        """Requests a process set of these ranks and returns the operation's handle.

        The first dimension of its result() is the set's id. Raises StatusError.
        """
        handle = ctypes.c_int64()
        self._check(self._lib.maypole_process_set_add(
            (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), handle))
        return handle.value

    def process_set_add_by_members(self, ranks: Sequence[int]) -> int:
        """As process_set_add(), but only these ranks make the request; they get the existing set, if there is one."""
        handle = ctypes.c_int64()
        self._check(self._lib.maypole_process_set_add_by_members(
            (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), handle))
        return handle.value

    def process_set_remove(self, process_set: int) -> int:
        """Requests the removal of a set and returns the operation's handle. Raises StatusError."""
        handle = ctypes.c_int64()
        self._check(self._lib.maypole_process_set_remove(process_set, handle))
        return handle.value

    def process_set_ranks(self, process_set: int) -> Optional[list[int]]:
        """The ranks of a set, ascending; None if there is no such set."""
        capacity = _LIKELY_RANKS
        while True:
            ranks = (ctypes.c_int32 * capacity)()
            count = self._lib.maypole_process_set_ranks(process_set, ranks,
                                                        capacity)
            if count <= capacity:
                return None if count < 0 else ranks[:count]
            capacity = count

    def allocate(self, size: int) -> int:
        """Allocates `size` zeroed bytes in the arena; returns their address.

        Pass the address to free() at the end. Raises StatusError; the code is RESOURCE_EXHAUSTED if the arena is full.
        """
        memory = ctypes.c_void_p()
        self._check(self._lib.maypole_allocate(size, memory))
        return memory.value or 0

    def allocate_on_gpu(self, size: int, gpu: int) -> int:
        """Allocates `size` bytes of the CUDA device with the ordinal `gpu`; returns their address.

        The node's executor also maps them.

        They are not zeroed. Pass the address to free_on_gpu() at the end.
        Raises StatusError; the code is RESOURCE_EXHAUSTED if there is no room
        or memory cannot be shared here.
        """
        memory = ctypes.c_void_p()
        self._check(self._lib.maypole_allocate_on_gpu(size, gpu, memory))
        return memory.value or 0

    def free_on_gpu(self, address: int, streams: Sequence[int]) -> int:
        """Frees memory of allocate_on_gpu() that `streams` may still use; also after shutdown().

        The memory is reused when the work that is now on these streams is done.
        """
        return self._lib.maypole_free_on_gpu(
            address, (ctypes.c_void_p * len(streams))(*streams), len(streams))

    def keep_state(self, name: str, fd: int) -> None:
        """Gives the executor a copy of `fd`, a memfd of fixed size, to hold under `name` after this process has died.

        Raises StatusError.
        """
        self._check(self._lib.maypole_keep_state(name.encode("utf-8"), fd))

    def find_state(self, name: str) -> Optional[int]:
        """Returns a new descriptor of the memory that the executor holds under `name`; None if there is none.

        Raises StatusError.
        """
        fd = ctypes.c_int(-1)
        status = self._lib.maypole_find_state(name.encode("utf-8"), fd)
        if status == NOT_FOUND:
            return None
        self._check(status)
        return fd.value

    def drop_state(self, name: str) -> None:
        """Makes the executor drop what it holds under `name`. Raises StatusError."""
        self._check(self._lib.maypole_drop_state(name.encode("utf-8")))

    def _check(self, status: int) -> None:
        if status != OK:
            raise StatusError(status, self.last_error())

    def last_error(self) -> str:
        """The calling thread's last error."""
        return self._lib.maypole_last_error().decode("utf-8", "replace")

    def version(self) -> str:
        return self._lib.maypole_version().decode("ascii")

    def counter(self, name: str) -> int:
        """A counter of this process by name (maypole.h), -1 if unknown."""
        return self._lib.maypole_counter(name.encode("utf-8"))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _fill(address: int, size: int, text: str) -> None:
    """Copies `text`, truncated to fit, and a final 0 to C's buffer."""
    encoded = text.encode("utf-8")[:size - 1] + b"\0"
    ctypes.memmove(address, encoded, len(encoded))


def find_library() -> str:
    """Returns the path of libmaypole.so; raises ImportError if there is none."""
    named = os.environ.get("MAYPOLE_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise ImportError(
                f"MAYPOLE_LIBRARY names {named!r}, which does not exist; "
                "set it to the path of libmaypole.so or unset it")
        # dlopen searches the system's directories for a bare file name.
        return os.path.abspath(named)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib",
                          "libmaypole.so")
    if not os.path.exists(beside):
        raise ImportError(
            f"libmaypole.so not found: there is no {beside} and "
            "MAYPOLE_LIBRARY is not set; in a source tree, build it and run "
            "'. deploy/env.sh'")
    return beside


def framework_library(framework: str) -> str:
    """Returns the path of the library of a framework ("tensorflow", ...), which is beside libmaypole.

    Raises ImportError if it is not there.
    """
    path = os.path.join(os.path.dirname(find_library()),
                        f"libmaypole_{framework}.so")
    if not os.path.exists(path):
        raise ImportError(f"there is no {path}: this installation of Maypole "
                          f"lacks its part for {framework}")
    return path


def load() -> Library:
    """Loads the library that find_library() finds.

    Raises ImportError if that fails.
    """
    path = find_library()
    try:
        return Library(path)
    except OSError as error:
        raise ImportError(f"cannot load {path}: {error}") from error
    except AttributeError as error:
        raise ImportError(
            f"{path} is not a libmaypole of this package's version: {error}"
        ) from error


_library: Optional[Any] = None


def library() -> Any:
    """The process's library; the first call loads it (or raises ImportError)."""
    global _library
    if _library is None:
        _library = load()
    return _library


def loaded() -> bool:
    """Whether library() has been called: only then can this process be in a job."""
    return _library is not None


def use(fake: Any) -> None:
    """Replaces the library by `fake`; None: library() loads the real one."""
    global _library
    _library = fake
