"""Collectives on plain memory, without a framework: such a rank starts in 0.1 s.

    plain.init()
    total = plain.allreduce("x", [1.0, 2.0])        # submits and waits
    pending = plain.submit("y", "allreduce", n=1000)
    pending.wait()                                  # the output, an array

It uses maypole.common, as maypole.torch does, so its errors are those that a
user of torch sees.
"""

import array
import ctypes

from maypole import _native
from maypole.common import basics, operations
from maypole.common.constants import Average, Sum  # noqa: F401 (for programs)
from maypole.common.exceptions import HorovodInternalError  # noqa: F401

init, shutdown = basics.init, basics.shutdown
rank, size = basics.rank, basics.size

KINDS = {"allreduce": _native.ALLREDUCE, "allgather": _native.ALLGATHER, "broadcast": _native.BROADCAST}
DTYPES = {"f": _native.FLOAT32, "d": _native.FLOAT64, "i": _native.INT32, "q": _native.INT64}


def _elements(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def submit(name, kind="allreduce", n=None, shape=None, code="f", value=1, op=Sum, root=0, prescale=1.0,
           postscale=1.0, in_place=False):
    """Submits an operation on elements that are all `value`; a Pending.

    n: so many elements in one dimension; or a shape. code: the array module's.
    """
    shape = (n,) if shape is None else tuple(shape)
    source = array.array(code, [value]) * _elements(shape)
    target, finish = source, None
    if kind == "allgather":
        target = None
        finish = lambda native: _gathered(native, code)
    elif not in_place:
        target = array.array(code, [0]) * len(source)
    return operations.submit(
        KINDS[kind], DTYPES[code], op, root, shape, prescale, postscale, name, source.buffer_info()[0],
        target.buffer_info()[0] if target is not None else 0, source, target, finish)


def _gathered(native, code):
    address, size, _ = _native.library().result(native)
    out = array.array(code)
    out.frombytes(ctypes.string_at(address, size))
    return out


def allreduce(name, n=1, value=1, **kwargs):
    """Allreduces `n` elements that are `value`; the sum, as an array."""
    return submit(name, n=n, value=value, **kwargs).wait()


def text_of(function):
    """(the text of function()'s exception, its result): one of them is None."""
    try:
        return None, function()
    except (HorovodInternalError, ValueError) as error:
        return str(error), None
