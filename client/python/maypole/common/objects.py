"""Python objects as bytes; broadcast_object and allgather_object of all bindings.

Thread contract: any thread; one thread at a time per name.
"""

import ctypes
import io
import pickle
import sys
from typing import Any, Optional

from maypole import _native
from maypole.common import basics, operations
from maypole.common.process_sets import ProcessSet, global_process_set, id_of

try:
    # cloudpickle also supports lambdas and classes of __main__.
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

# Whether functions and classes of __main__, lambdas and closures can be pickled.
PICKLES_BY_VALUE = _pickler is not pickle


def _in_main(qualname: str) -> Any:
    """Returns what this process's program has under a name; None if it has nothing."""
    found: Any = sys.modules.get("__main__")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _class_of_main(qualname: str, by_value: bytes) -> type:
    found = _in_main(qualname)
    return found if isinstance(found, type) else pickle.loads(by_value)


class _Pickler(_pickler.Pickler):
    """Makes a class of the program the receiver's own class, if its program has it.

    cloudpickle alone makes another class: its objects are no instances of the receiver's, and enums are not equal.
    """

    if PICKLES_BY_VALUE:

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and obj.__module__ == "__main__" and _in_main(obj.__qualname__) is obj:
                return _class_of_main, (obj.__qualname__, _pickler.dumps(obj))
            return super().reducer_override(obj)


def dumps(obj: Any, named: Optional[dict[str, Any]] = None) -> bytearray:
    """Returns `obj` pickled, in memory that can back a tensor.

    named: objects of which only the name is written, wherever `obj` refers to
    them; loads() puts its own objects in their place.
    """
    names = {id(value): name for name, value in (named or {}).items()}

    class Pickler(_Pickler):
        """Writes names in place of named objects."""

        def persistent_id(self, obj: Any) -> Optional[str]:
            return names.get(id(obj))

    with io.BytesIO() as file:
        (Pickler if names else _Pickler)(file).dump(obj)
        return bytearray(file.getbuffer())


def dump(obj: Any, file: Any) -> None:
    """Writes `obj`, pickled, to a binary file."""
    _Pickler(file).dump(obj)


def loads(data: Any, named: Optional[dict[str, Any]] = None) -> Any:
    """Reverses dumps(). The bytes must come from a rank of the same job."""
    if not named:
        return pickle.loads(data)
    objects_by_name = named

    class Unpickler(pickle.Unpickler):
        """Puts objects in place of their names."""

        def persistent_load(self, pid: str) -> Any:
            return objects_by_name[pid]

    return Unpickler(io.BytesIO(data)).load()


def bytes_at(address: int, size: int) -> memoryview:
    """Returns the memory at `address`, which must live as long as it is read."""
    # Not ctypes.string_at, which takes less than 2 GiB.
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def broadcast_object(obj: Any,
                     root_rank: int = 0,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns rank `root_rank`'s `obj` on all ranks; the other ranks' `obj` is ignored.

    Args:
        obj: what pickle or cloudpickle can write.
        root_rank: a rank of the job (not an index in the process set); it must be in the set. The object is
            pickled (by cloudpickle if it is installed).
        name: needed if several threads call this at once.
        process_set: the ranks that take part; all of them must make the call.
    """
    name = name or "broadcast_object"
    number = id_of(process_set)
    is_root = basics.rank() == root_rank
    data = dumps(obj) if is_root else bytearray()
    length = ctypes.c_int64(len(data))
    _broadcast(length, _native.INT64, 1, root_rank, f"{name}.size", number)
    if not is_root:
        data = bytearray(length.value)
    memory = (ctypes.c_ubyte * len(data)).from_buffer(data)
    _broadcast(memory, _native.UINT8, len(data), root_rank, f"{name}.data",
               number)
    return obj if is_root else loads(data)


def _broadcast(memory: Any, dtype: int, count: int, root_rank: int, name: str,
               process_set: int) -> None:
    address = ctypes.addressof(memory)
    operations.submit(_native.BROADCAST, dtype, 0, root_rank, (count,), 1.0,
                      1.0, name, address, address, memory, memory,
                      awaited=True, process_set=process_set).wait()


def allgather_object(obj: Any,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the list of all ranks' `obj`s, in rank order.

    The objects are pickled (by cloudpickle if it is installed).

    Args:
        obj: what pickle or cloudpickle can write.
        name: needed if several threads call this at once.
        process_set: the ranks that take part; all of them must make the call.
    """
    name = name or "allgather_object"
    number = id_of(process_set)
    data = dumps(obj)
    lengths = _allgather(ctypes.c_int64(len(data)), _native.INT64, 1,
                         f"{name}.size", number,
                         lambda gathered: gathered.cast("q").tolist())
    return _allgather((ctypes.c_ubyte * len(data)).from_buffer(data),
                      _native.UINT8, len(data), f"{name}.data", number,
                      lambda gathered: _loads_each(gathered, lengths))


def _loads_each(gathered: memoryview, lengths: list[int]) -> list[Any]:
    found, start = [], 0
    for length in lengths:
        found.append(loads(gathered[start:start + length]))
        start += length
    return found


def _allgather(memory: Any, dtype: int, count: int, name: str,
               process_set: int, read: Any) -> Any:
    """Gathers `memory`; returns what read(all bytes) returns."""

    def finish(native: int) -> Any:
        address, size, _ = _native.library().result(native)
        return read(bytes_at(address, size))

    return operations.submit(_native.ALLGATHER, dtype, 0, 0, (count,), 1.0,
                             1.0, name, ctypes.addressof(memory), 0, memory,
                             None, finish, awaited=True,
                             process_set=process_set).wait()
