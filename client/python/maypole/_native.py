"""ctypes binding of libmaypole (client/maypole.h), and nothing more.

`library()` loads libmaypole.so once per process and returns a `Library`. The
rest of the package sees the C ABI only through that object, so that a test can
put a fake in its place with `use()`.

The file is looked up as MAYPOLE_LIBRARY says, otherwise beside the package
(maypole/lib/libmaypole.so). It needs CPython 3.9 or newer and no framework.

Thread contract: everything here may be called from any thread. ctypes releases
the GIL during each call. Waits are the caller's loop over short slices, see
`maypole.common.operations`: a signal's Python handler runs only between calls.

Invariants: statuses are returned as plain ints (gRPC's codes); nothing here
raises for a status but what has something else to return (`submit`, `result`,
`allocate`, `process_set_add`, ...).
"""

import ctypes
import os
import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

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
UNIMPLEMENTED = 12
UNAVAILABLE = 14

# maypole_dtype
UINT8, INT8, UINT16, INT16, INT32, INT64 = 0, 1, 2, 3, 4, 5
FLOAT16, FLOAT32, FLOAT64, BOOL, BFLOAT16 = 6, 7, 8, 9, 10

# maypole_kind
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL = 0, 1, 2, 3
REDUCESCATTER, BARRIER, JOIN = 4, 5, 6

MAX_DIMS = 8

# MAYPOLE_WAIT_INTERRUPTIBLE: no end, but back every 0.1 s while data moves.
WAIT_INTERRUPTIBLE = -2

# struct maypole_operation as bytes; packing is several times cheaper than
# filling a ctypes.Structure and needs no memory shared between calls.
#   size_t struct_size; int32 kind, dtype, op, device, process_set, root, dims,
#   awaited; int64 shape[8]; double prescale, postscale; void* name, input,
#   output, splits; int32 splits_count, reserved
OPERATION = struct.Struct("@N8i8q2dPPPPii")
_pack = OPERATION.pack
_SHAPE_PADDING = tuple((0,) * (MAX_DIMS - dims) for dims in range(MAX_DIMS + 1))

# struct maypole_exchange and its functions.
_PUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                        ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                        ctypes.c_void_p, ctypes.c_int)


class _Exchange(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("context", ctypes.c_void_p),
                ("put", _PUT), ("get", _GET)]


# Encoded names, for names come back at every step. Emptied when it is full:
# a program that never repeats a name must not grow without bound.
_MAX_CACHED_NAMES = 16384

# Ranks that fit in the first try at process_set_ranks().
_LIKELY_RANKS = 64

# What Library.submit() takes, see there.
Arguments = Tuple[Any, ...]


class StatusError(Exception):
    """A maypole_status that is not MAYPOLE_OK: `.code` and the text."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Library:
    """The functions of maypole.h, with Python's types."""

    __slots__ = ("path", "_lib", "_exchange", "_submit", "_submit_group", "_wait", "_poll",
                 "_names", "rank", "size", "local_rank", "local_size",
                 "cross_rank", "cross_size", "init", "shutdown", "release")

    def __init__(self, path: str):
        self.path = path
        self._lib = lib = ctypes.CDLL(path)
        self._names: Dict[str, Tuple[Any, int]] = {}
        self._submit = _bind(lib, "maypole_submit", ctypes.c_void_p,
                             ctypes.c_void_p)
        self._submit_group = _bind(lib, "maypole_submit_group",
                                   ctypes.c_void_p, ctypes.c_int32,
                                   ctypes.c_void_p)
        self._wait = _bind(lib, "maypole_wait", ctypes.c_int64, ctypes.c_int)
        self._poll = _bind(lib, "maypole_poll", ctypes.c_int64,
                           ctypes.POINTER(ctypes.c_int))
        self.release = _bind(lib, "maypole_release", ctypes.c_int64)
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank",
                     "cross_size", "init", "shutdown"):
            setattr(self, name, _bind(lib, "maypole_" + name))
        _bind(lib, "maypole_allocate", ctypes.c_uint64,
              ctypes.POINTER(ctypes.c_void_p))
        _bind(lib, "maypole_free", ctypes.c_void_p)
        _bind(lib, "maypole_is_initialized")
        _bind(lib, "maypole_is_homogeneous")
        _bind(lib, "maypole_result", ctypes.c_int64,
              ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64),
              ctypes.POINTER(ctypes.c_int64))
        _bind(lib, "maypole_received_splits", ctypes.c_int64,
              ctypes.POINTER(ctypes.c_int64), ctypes.c_int32)
        _bind(lib, "maypole_process_set_add", ctypes.POINTER(ctypes.c_int32),
              ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))
        _bind(lib, "maypole_process_set_remove", ctypes.c_int32,
              ctypes.POINTER(ctypes.c_int64))
        _bind(lib, "maypole_process_set_ranks", ctypes.c_int32,
              ctypes.POINTER(ctypes.c_int32), ctypes.c_int32)
        _bind(lib, "maypole_set_exchange", ctypes.c_void_p)
        _bind(lib, "maypole_last_error").restype = ctypes.c_char_p
        _bind(lib, "maypole_version").restype = ctypes.c_char_p
        _bind(lib, "maypole_counter",
              ctypes.c_char_p).restype = ctypes.c_int64

    def is_initialized(self) -> bool:
        return bool(self._lib.maypole_is_initialized())

    def is_homogeneous(self) -> bool:
        return bool(self._lib.maypole_is_homogeneous())

    def set_exchange(self, put: Callable[[str, str], None],
                     get: Callable[[str, int], Optional[str]],
                     why: Callable[[], str] = lambda: "nobody has published it") -> None:
        """How values get from rank 0 to the other nodes during init().

        put(key, value); get(key, timeout in milliseconds) returns None if
        nobody has put it in time; why() then says why. What they raise is
        init()'s error.
        """

        @_PUT
        def c_put(_, key, value, error, error_bytes):
            try:
                put(key.decode("utf-8"), value.decode("utf-8"))
            except Exception as e:  # must not pass through C
                _fill(error, error_bytes, _described(e))
                return UNAVAILABLE
            return OK

        @_GET
        def c_get(_, key, timeout_ms, value, value_bytes, error, error_bytes):
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
        status = self._lib.maypole_set_exchange(ctypes.byref(exchange))
        if status != OK:
            raise StatusError(status, self.last_error())
        self._exchange = exchange  # C may call the functions as long as we live

    def submit(self,
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
               splits: Optional[Sequence[int]] = None) -> int:
        """Submits an operation on host memory and returns its handle.

        `shape` has at most MAX_DIMS entries. Raises StatusError. The memory at
        the addresses must live until the operation has ended. `awaited`: this
        thread calls wait() next, which saves waking another one.
        """
        operation, kept = self._packed(kind, dtype, op, root, shape, prescale,
                                       postscale, name, input_address,
                                       output_address, awaited, process_set,
                                       splits)
        handle = ctypes.c_int64()
        status = self._submit(operation, ctypes.addressof(handle))
        del kept
        if status != OK:
            raise StatusError(status, self.last_error())
        return handle.value

    def submit_group(self, members: Sequence[Arguments]) -> Sequence[int]:
        """Submits all of `members` or, if one is refused, none of them.

        Each is a tuple of submit()'s arguments. Returns a handle for each.
        Raises StatusError, whose text names the one that was refused.
        """
        packed, kept = zip(*(self._packed(*member) for member in members))
        handles = (ctypes.c_int64 * len(packed))()
        status = self._submit_group(b"".join(packed), len(packed),
                                    ctypes.addressof(handles))
        del kept
        if status != OK:
            raise StatusError(status, self.last_error())
        return list(handles)

    def _packed(self,
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
                splits: Optional[Sequence[int]] = None) -> Tuple[bytes, Any]:
        """(a maypole_operation, what must live until it is submitted)"""
        encoded, name_address = self._encode(name)
        numbers, count = None, 0
        if splits is not None:
            count = len(splits)
            numbers = (ctypes.c_int64 * count)(*splits)
        dims = len(shape)
        operation = _pack(OPERATION.size, kind, dtype, op, 0, process_set, root,
                          dims, awaited, *shape, *_SHAPE_PADDING[dims],
                          prescale, postscale, name_address, input_address,
                          output_address,
                          ctypes.addressof(numbers) if count else 0, count, 0)
        return operation, (encoded, numbers)

    def _encode(self, name: Optional[str]) -> Tuple[Any, int]:
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

    def wait(self, handle: int, timeout_ms: int) -> int:
        """Waits at most `timeout_ms` (or WAIT_INTERRUPTIBLE); the status."""
        return self._wait(handle, timeout_ms)

    def poll(self, handle: int) -> Tuple[int, bool]:
        """(status, whether the operation has ended)"""
        done = ctypes.c_int()
        status = self._poll(handle, done)
        return status, bool(done.value)

    def result(self, handle: int) -> Tuple[int, int, int]:
        """(address, bytes, first dimension) of what an ended operation gave.

        The memory lives until `release(handle)`. Raises StatusError.
        """
        data = ctypes.c_void_p()
        size = ctypes.c_int64()
        first_dim = ctypes.c_int64()
        status = self._lib.maypole_result(handle, data, size, first_dim)
        if status != OK:
            raise StatusError(status, self.last_error())
        return data.value or 0, size.value, first_dim.value

    def received_splits(self, handle: int, count: int) -> List[int]:
        """Rows that an alltoall has brought from each of `count` ranks.

        Raises StatusError.
        """
        splits = (ctypes.c_int64 * count)()
        status = self._lib.maypole_received_splits(handle, splits, count)
        if status != OK:
            raise StatusError(status, self.last_error())
        return list(splits)

    def process_set_add(self, ranks: Sequence[int]) -> int:
        """Asks for a set of these ranks; the handle of an operation whose
        result()'s first dimension is its id. Raises StatusError."""
        handle = ctypes.c_int64()
        status = self._lib.maypole_process_set_add(
            (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), handle)
        if status != OK:
            raise StatusError(status, self.last_error())
        return handle.value

    def process_set_remove(self, process_set: int) -> int:
        """Asks to remove a set; the handle of an operation. StatusError."""
        handle = ctypes.c_int64()
        status = self._lib.maypole_process_set_remove(process_set, handle)
        if status != OK:
            raise StatusError(status, self.last_error())
        return handle.value

    def process_set_ranks(self, process_set: int) -> Optional[List[int]]:
        """The ranks of a set, ascending; None: there is no such set."""
        capacity = _LIKELY_RANKS
        while True:
            ranks = (ctypes.c_int32 * capacity)()
            count = self._lib.maypole_process_set_ranks(process_set, ranks,
                                                        capacity)
            if count <= capacity:
                return None if count < 0 else ranks[:count]
            capacity = count

    def allocate(self, size: int) -> int:
        """The address of `size` zeroed bytes in the arena, for free().

        Raises StatusError; RESOURCE_EXHAUSTED: the arena is full.
        """
        memory = ctypes.c_void_p()
        status = self._lib.maypole_allocate(size, memory)
        if status != OK:
            raise StatusError(status, self.last_error())
        return memory.value or 0

    def free(self, address: int) -> int:
        """Gives back what allocate() gave; also after shutdown()."""
        return self._lib.maypole_free(address)

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
    """Puts `text`, cut to fit, and a final 0 into C's buffer."""
    encoded = text.encode("utf-8")[:size - 1] + b"\0"
    ctypes.memmove(address, encoded, len(encoded))


def _bind(lib: ctypes.CDLL, name: str, *argtypes: Any) -> Any:
    function = getattr(lib, name)
    function.argtypes = argtypes
    function.restype = ctypes.c_int
    return function


def find_library() -> str:
    """Path of libmaypole.so; ImportError if there is none."""
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


def load() -> Library:
    """Loads the library that find_library() finds; ImportError if it can't."""
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
    """The process's library, loaded at the first call (ImportError)."""
    global _library
    if _library is None:
        _library = load()
    return _library


def use(fake: Any) -> None:
    """Puts `fake` in the library's place (None: load the real one again)."""
    global _library
    _library = fake
