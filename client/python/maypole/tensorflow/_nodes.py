"""Collectives as TensorFlow operations: names, order, waiting.

call() makes one operation, at once or in a graph.

Names. In a graph an operation without a name gets one, because the order in which
a graph runs differs between ranks: the tf.function (or the branch of a cond), the
kind and process set, and a number where the graph has such a name already. So
ranks must make these operations in the same order, but their graphs may differ in
everything else. Every name is unique in its graph, and prefixed with the name
scopes. Eager operations without a name are matched by the order of the calls.

Order. The operations of a tf.function are stateful, so that TensorFlow neither
drops nor folds any, but they run concurrently, as soon as their inputs are
ready.

Waiting. From TensorFlow 2.13 on no thread waits. In earlier versions a
collective is a pair of operations, Submit and Wait. A Wait blocks a thread of
TensorFlow's pool, so each Wait gets control dependencies on all Submits of its
tf.function that do not need its result: no thread blocks before everything that
can be submitted is submitted. In a compat.v1 graph that would run operations
that nobody fetches; there together() says which operations are always fetched
together.

Thread contract: that of TensorFlow's graphs.
"""

import collections
import contextlib
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf

from maypole.common import collectives
from maypole.tensorflow import _xla
from maypole.tensorflow._library import ASYNC, ops

# Characters that a node's name may not have.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")
_NOT_AT_START = re.compile(r"^[^A-Za-z0-9.]+")

def call(kind: str, inputs: dict[str, Any], attributes: dict[str, Any], name: Optional[str],
         ignore_name_scope: bool = False) -> Any:
    """Runs or adds the operation Maypole`kind`; returns its outputs.

    inputs: the inputs by name; attributes: all but the name. ignore_name_scope: in a graph,
    the operation's name is without the name scopes.
    """
    collectives.check_name(kind.lower(), name)
    function = "maypole_" + re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
    if tf.executing_eagerly():
        return _add(function, inputs, dict(attributes, tensor_name=name or ""), None)
    graph = tf.compat.v1.get_default_graph()
    node = graph.unique_name(_node_name(name or _default_name(graph, kind, attributes)))
    shared = node.rpartition("/")[2] if ignore_name_scope else node
    if _is_compiled(graph):
        return _xla.call(kind, inputs, attributes, shared)
    # With a trailing slash TensorFlow takes the name as it is, without the scopes that unique_name() added.
    return _add(function, inputs, dict(attributes, tensor_name=shared), node + "/", graph)


def function_of(graph: Any) -> str:
    """Returns the function's name; "" in a version 1 graph."""
    # Without the number that TensorFlow appends, which counts within this process.
    return re.sub(r"_\d+$", "", getattr(graph, "name", None) or "")


def _default_name(graph: Any, kind: str, attributes: dict[str, Any]) -> str:
    function = function_of(graph)
    # Ranks outside the set do not have its operations.
    process_set = attributes.get("process_set_id", 0)
    name = f"Maypole{kind}" + (f"_set{process_set}" if process_set else "")
    return f"{function}/{name}" if function else name


# How often each name was used in a graph.
_uses: "weakref.WeakKeyDictionary[Any, collections.Counter]" = weakref.WeakKeyDictionary()


def count_use(name: str) -> int:
    """Returns how often this graph has used the name, including this time; 1 in eager execution."""
    if tf.executing_eagerly():
        return 1  # one operation after the other
    uses = _uses.setdefault(tf.compat.v1.get_default_graph(), collections.Counter())
    uses[name] += 1
    return uses[name]


def place(what: str, process_set: int, name: Optional[str] = None) -> Any:
    """Returns the operation for this process's place ("size", "rank", ...).

    A constant in a function that XLA compiles.
    """
    if not tf.executing_eagerly() and _is_compiled(tf.compat.v1.get_default_graph()):
        with tf.init_scope():
            now = int(place(what, process_set))
        return tf.constant(now, tf.int32, name=name)
    result = getattr(ops, "maypole_" + what)(process_set_id=process_set, name=name)
    if not tf.executing_eagerly():
        _run_independently(tf.compat.v1.get_default_graph(), result.op)
    return result


def _node_name(name: str) -> str:
    return _NOT_AT_START.sub("", _NOT_IN_NAMES.sub("_", name)) or "Maypole"


def _is_compiled(graph: Any) -> bool:
    """Whether the graph belongs to a function with jit_compile=True, or is inside one."""
    context = graph._get_control_flow_context()
    while graph is not None:
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
        if graph is not None:
            context = graph._get_control_flow_context()
    return False


def _add(function: str, inputs: dict[str, Any], attributes: dict[str, Any], node: Optional[str],
         graph: Any = None) -> Any:
    if ASYNC:
        result = getattr(ops, function)(**inputs, **attributes, name=node)
        if graph is not None:
            _run_independently(graph, _operation_of(result))
        return result
    submit_name = None if node is None else node[:-1] + ".submit/"
    handle = getattr(ops, function + "_submit")(**inputs, **attributes, name=submit_name)
    if graph is None:
        return getattr(ops, function + "_wait")(**inputs, **attributes, handle=handle)
    order = _order_in(graph)
    order.add_submit(handle.op)
    with tf.control_dependencies(order.submits):
        result = getattr(ops, function + "_wait")(**inputs, **attributes, handle=handle, name=node)
    order.add_wait(_operation_of(result))
    _set_shapes(function, inputs, result)
    for operation in (handle.op, _operation_of(result)):
        _run_independently(graph, operation)
    return result


def _set_shapes(function: str, inputs: dict[str, Any], results: Any) -> None:
    """Sets the shapes that the library cannot infer in TensorFlow 2.8."""
    if function == "maypole_alltoall":
        results[1].set_shape([None])
    same = function in ("maypole_allreduce", "maypole_broadcast")
    for i, tensor in enumerate(inputs.get("tensors", ())):
        if results[i].shape.rank is None and tensor.shape.rank is not None:
            results[i].set_shape(tensor.shape if same else [None, *tensor.shape[1:]])


def _operation_of(result: Any) -> Any:
    """Returns the tf.Operation of a generated function's result."""
    if isinstance(result, tf.Operation):
        return result
    if isinstance(result, (list, tuple)):
        return result[0].op
    return result.op


def _run_independently(graph: Any, operation: Any) -> None:
    """Lets a stateful operation of a tf.function run as soon as its inputs are ready."""
    manager = getattr(graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)


class _Order:
    """The Submits and Waits of a graph that run together."""

    def __init__(self) -> None:
        self.submits: list[Any] = []
        self._waits: list[Any] = []
        # When a function is complete, TensorFlow makes each of its stateful
        # operations depend on the earlier ones whose effects it may see. Until
        # then this class assumes that each depends on the one before.
        self._stateful_before: dict[Any, Any] = {}
        self._last_stateful: Any = None
        self._looked_at = 0

    def add_submit(self, submit: Any) -> None:
        """Makes all Waits that `submit` does not need wait for it."""
        needed = self._waits_before(submit)
        for wait in self._waits:
            if wait not in needed:
                wait._add_control_input(submit)
        self.submits.append(submit)

    def add_wait(self, wait: Any) -> None:
        self._waits.append(wait)

    def _look_at_stateful(self, operations: list[Any]) -> None:
        for operation in operations[self._looked_at:]:
            stateful = operation._is_stateful
            if stateful and not operation.type.startswith("Maypole"):
                self._stateful_before[operation] = self._last_stateful
                self._last_stateful = operation
        self._looked_at = len(operations)

    def _waits_before(self, operation: Any) -> Any:
        self._look_at_stateful(operation.graph.get_operations())
        waits, seen, todo = set(self._waits), set(), [operation]
        while todo:
            at = todo.pop()
            before = [tensor.op for tensor in at.inputs] + list(at.control_inputs)
            before.append(self._stateful_before.get(at))
            for other in before:
                if other is not None and other not in seen:
                    seen.add(other)
                    todo.append(other)
        return waits & seen


_scopes = threading.local()


def _order_in(graph: Any) -> _Order:
    if getattr(graph, "experimental_acd_manager", None) is None:  # of compat.v1
        return getattr(_scopes, "order", None) or _Order()
    # Control dependencies must not lead into a loop or out of it.
    context = graph._get_control_flow_context()
    name = None if context is None else context.name
    # An attribute, because an _Order has operations, and so keeps their graph alive.
    orders = graph.__dict__.setdefault("_maypole_orders", {})
    return orders.setdefault(name, _Order())


@contextlib.contextmanager
def together() -> Iterator[None]:
    """The collectives made in this context are always run together.

    For compat.v1 graphs before TensorFlow 2.13, in which other collectives may
    block all threads of the pool, if ranks run them in different orders.
    """
    before = getattr(_scopes, "order", None)
    _scopes.order = _Order()
    try:
        yield
    finally:
        _scopes.order = before
