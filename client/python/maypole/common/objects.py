"""Python objects as bytes, for broadcast_object and allgather_object."""

import pickle
from typing import Any

try:
    # cloudpickle supports lambdas and classes of __main__ too.
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

# Whether functions and classes of __main__, lambdas and closures can be pickled.
PICKLES_BY_VALUE = _pickler is not pickle


def dumps(obj: Any) -> bytearray:
    """Returns `obj` pickled, in memory that can back a tensor."""
    return bytearray(_pickler.dumps(obj))


def loads(data: Any) -> Any:
    """Reverses dumps(). The bytes must come from a rank of the same job."""
    return pickle.loads(data)
