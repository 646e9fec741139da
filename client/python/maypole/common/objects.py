"""Python objects as bytes, for broadcast_object and allgather_object."""

import pickle
from typing import Any

try:
    # Carries lambdas and classes of __main__ too.
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle


def dumps(obj: Any) -> bytearray:
    """`obj` pickled, in memory a tensor may be made of."""
    return bytearray(_pickler.dumps(obj))


def loads(data: Any) -> Any:
    """The object of dumps(). The bytes come from a rank of the same job."""
    return pickle.loads(data)
