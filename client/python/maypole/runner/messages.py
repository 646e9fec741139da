"""The messages between maypole.run() and its ranks, as bytes.

Each rank gets a call: the function, its arguments, and where to find modules.
Each rank gives an answer: its result, or how it failed. An answer is preceded
by its length, so that an answer left incomplete by a dying rank is not taken
for a complete one. Its outer part has only built-in types, so it can always be
unpickled; what the user's function has returned or raised is bytes in it.

No answer or call is read from a network: they are files of mode 0600 of the
same user, and travel to and from other hosts through maypolerun's ssh.
"""

import io
import pickle
import struct
import types
from typing import Any, Optional

from maypole.common import objects

_LENGTH = struct.Struct("<Q")
_BY_VALUE = ("install cloudpickle, which can (pip install cloudpickle; on Debian, as root: apt-get install "
             "python3-cloudpickle), or move it to a module that ranks can import")


class _NamePickler(pickle.Pickler):
    """Refuses objects that a rank could not find, because its __main__ is a different module."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in __main__")
        return NotImplemented


def encode_call(func: Any, args: Any, kwargs: Any, paths: list[str]) -> bytes:
    """Pickles a call. Raises TypeError if it cannot be pickled."""
    call = (func, tuple(args), dict(kwargs))
    try:
        if objects.PICKLES_BY_VALUE:
            body = bytes(objects.dumps(call))
        else:
            stream = io.BytesIO()
            _NamePickler(stream).dump(call)
            body = stream.getvalue()
    except Exception as error:  # whatever __reduce__ raises
        what = f"cannot pickle {getattr(func, '__qualname__', func)} and its arguments for the ranks: {error}"
        raise TypeError(what if objects.PICKLES_BY_VALUE else f"{what}; {_BY_VALUE}") from error
    return pickle.dumps((list(paths), body))


def decode_paths(data: bytes) -> Any:
    """Returns where the caller finds modules, and the rest for decode_value()."""
    return pickle.loads(data)


def decode_value(body: bytes) -> Any:
    """Returns the call (func, args, kwargs), a result or an exception; needs the modules that define it."""
    return objects.loads(body)


def encode_answer(rank: Optional[int], size: Optional[int], **fields: Any) -> bytes:
    """Makes an answer. rank, size: None in an elastic job whose process has none at its end.

    fields: `result`, pickled; or `error`, `traceback` and, perhaps, `exception`, pickled.
    """
    body = pickle.dumps(dict(fields, rank=rank, size=size))
    return _LENGTH.pack(len(body)) + body


def decode_answer(data: bytes) -> Optional[dict[str, Any]]:
    """Returns the answer; None if it is incomplete."""
    if len(data) < _LENGTH.size or len(data) - _LENGTH.size < _LENGTH.unpack_from(data)[0]:
        return None
    return pickle.loads(memoryview(data)[_LENGTH.size:])
