"""Collectives in functions that XLA compiles (jit_compile=True), from TensorFlow 2.18 on.

There a collective is a custom call of XLA, handled by client/xla: one call for all
tensors of a group. TensorFlow's operation XlaCallModule puts it into the graph, as a
StableHLO module with this one instruction. It works only in programs for CPUs.

XLA runs few custom calls at a time, in an order of its own. To make a function's calls
run in the order of the program's text, each one has a result of the previous one as an
additional operand, which it does not read.

Tracing fixes all shapes, the number of ranks and this rank's place, so a function
must be traced again after ranks have come or gone.

Thread contract: that of TensorFlow's graphs.
"""

import ctypes
import functools
import os
import struct
import types
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from maypole import _native
from maypole.common import collectives, xla_header
from maypole.tensorflow._library import library

_KINDS = {"Allreduce": _native.ALLREDUCE, "Allgather": _native.ALLGATHER,
          "Broadcast": _native.BROADCAST, "Reducescatter": _native.REDUCESCATTER}
_TYPES = {tf.float16: "f16", tf.bfloat16: "bf16", tf.float32: "f32", tf.float64: "f64",
          tf.int8: "i8", tf.int16: "i16", tf.int32: "i32", tf.int64: "i64", tf.uint8: "ui8",
          tf.uint16: "ui16", tf.bool: "i1"}
# The version of XlaCallModule's serialization, which TensorFlow 2.18 and all newer ones read.
_VERSION = 9

_INSTEAD = ("use jit_compile=False there (Keras: model.compile(..., jit_compile=False)), or compile "
            "only a function without collectives")


@functools.cache
def why_not() -> Optional[str]:
    """Returns why XLA cannot compile collectives here; None if it can. The first call registers the custom call."""
    if tf.config.list_physical_devices("GPU"):
        return "programs for GPUs have no custom call of Maypole's"
    path = os.path.join(tf.sysconfig.get_include(), "xla/ffi/api/c_api.h")
    try:
        with open(path, encoding="utf-8") as f:
            numbers = xla_header.layout(f.read(), f"TensorFlow {tf.__version__}")
    except (OSError, ImportError) as error:
        return str(error)
    connect = library.maypole_tensorflow_connect_xla
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    failure = connect((ctypes.c_int32 * len(numbers))(*numbers))
    return None if failure is None else failure.decode()


def call(kind: str, inputs: dict[str, Any], attributes: dict[str, Any], name: str) -> list[Any]:
    """As _nodes.call(), in a function that XLA compiles.

    Raises NotImplementedError where that is impossible, ValueError for shapes that are
    not fixed.
    """
    reason = why_not()
    if reason is None and kind not in _KINDS:
        reason = "its result has no fixed shape, or it has no tensor"
    if reason is not None:
        raise NotImplementedError(
            f"XLA cannot compile Maypole's {kind.lower()} {name!r}, which is in a function with "
            f"jit_compile=True ({reason}): {_INSTEAD}")
    tensors = [_with_rows(kind, tensor) for tensor in inputs["tensors"]]

    graph = tf.compat.v1.get_default_graph()

    @tf.custom_gradient
    def compiled(*values: Any) -> Any:
        results = _custom_call(kind, values, getattr(graph, _LAST, []), attributes, name)
        setattr(graph, _LAST, [min(results, key=lambda result: result.shape.num_elements())])
        return results, lambda *grads: _gradients(kind, tensors, attributes, name, grads)

    return list(compiled(*tensors))


# The functions of the collectives' gradients, by kind; _gradients.py registers them.
GRADIENTS: dict[str, Callable[..., list[Any]]] = {}
# A graph's attribute: a list of one result of its last collective.
_LAST = "_maypole_last_collective"


def _with_rows(kind: str, tensor: Any) -> Any:
    gathers = kind == "Allgather" and tensor.shape.rank == 0
    return tf.reshape(tensor, [1]) if gathers else tensor


def _gradients(kind: str, tensors: Sequence[Any], attributes: dict[str, Any], name: str,
               grads: Sequence[Any]) -> list[Any]:
    """Calls the collective's gradient function with an object in place of the operation, whose attributes it reads."""
    if kind == "Allgather":
        raise NotImplementedError(f"allgather {name!r} has no gradient in a function with "
                                  f"jit_compile=True: {_INSTEAD}")
    return GRADIENTS[kind](
        types.SimpleNamespace(get_attr=dict(attributes, tensor_name=name.encode()).__getitem__), tensors, grads)


def _custom_call(kind: str, tensors: Sequence[Any], after: list[Any],
                 attributes: dict[str, Any], name: str) -> list[Any]:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    process_set = attributes["process_set_id"]
    shapes = [_result_shape(kind, tensor, process_set, name) for tensor in tensors]
    taken = [_type(tensor.shape, tensor.dtype) for tensor in [*tensors, *after]]
    given = [_type(shape, tensor.dtype) for shape, tensor in zip(shapes, tensors)]
    return gen_xla_ops.xla_call_module(
        args=[*tensors, *after], version=_VERSION, platforms=["CPU"],
        module=_module(taken, given, _settings(kind, attributes, name, len(tensors))),
        Sout=[tf.TensorShape(shape) for shape in shapes],
        Tout=[tensor.dtype for tensor in tensors])


def _result_shape(kind: str, tensor: Any, process_set: int, name: str) -> list[int]:
    if tensor.dtype not in _TYPES or not tensor.shape.is_fully_defined():
        raise ValueError(f"{kind.lower()} {name!r} in a function with jit_compile=True: expected a "
                         f"fixed shape and a dtype of {', '.join(t.name for t in _TYPES)}, got "
                         f"{tensor.shape} of {tensor.dtype.name}")
    shape = tensor.shape.as_list()
    if kind == "Allgather":
        return [shape[0] * len(collectives.ranks_of(process_set))] + shape[1:]
    if kind == "Reducescatter":
        return [collectives.scattered_rows(shape[0], process_set)] + shape[1:]
    return shape


def _type(shape: Any, dtype: Any) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{_TYPES[dtype]}>"


def _settings(kind: str, attributes: dict[str, Any], name: str, count: int) -> str:
    """The call's attributes, as client/xla/collective.cc reads them."""
    names = [name] if count == 1 else [f"{name}.{i}of{count}" for i in range(count)]
    integers = {"kind": _KINDS[kind], "op": attributes.get("reduce_op", 0),
                "root": attributes.get("root_rank", 0),
                "process_set": attributes["process_set_id"]}
    one = struct.unpack("@q", struct.pack("@d", 1.0))[0]
    bits = {factor: attributes.get(factor + "_bits", one) % 2**64
            for factor in ("prescale", "postscale")}
    return ", ".join([f"{key} = {value} : i32" for key, value in integers.items()]
                     + [f"{key} = 0x{value:016X} : f64" for key, value in bits.items()]
                     + ['names = "' + r"\0A".join(names) + '"'])


def _module(taken: Sequence[str], given: Sequence[str], settings: str) -> str:
    arguments = [f"%arg{i}" for i in range(len(taken))]
    results = [f"%0#{i}" if len(given) > 1 else "%0" for i in range(len(given))]
    parameters = ", ".join(f"{a}: {t}" for a, t in zip(arguments, taken))
    count = f":{len(given)}" if len(given) > 1 else ""
    return f"""module @maypole {{
  func.func public @main({parameters}) -> ({", ".join(given)}) {{
    %0{count} = stablehlo.custom_call @maypole_collective({", ".join(arguments)}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{{settings}}}
    }} : ({", ".join(taken)}) -> ({", ".join(given)})
    return {", ".join(results)} : {", ".join(given)}
  }}
}}"""
