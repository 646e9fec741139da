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
ready. A function that another one calls, and the branches of a cond, have names
of their own, which may be those of operations in the graph around them, or of
another call. So such a call runs after the calls and collectives that come
before it in the program, and before those that come after it (_Calls).

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
import itertools
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf

# Not public: what TensorFlow calls for the operations of a function before it orders them.
from tensorflow.python.framework.auto_control_deps import register_acd_resource_resolver
from tensorflow.python.framework.func_graph import FuncGraph

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
    shared = _without_scope(graph, node) if ignore_name_scope else node
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


# The names without scopes that a graph's operations have.
_names: "weakref.WeakKeyDictionary[Any, set[str]]" = weakref.WeakKeyDictionary()


def _without_scope(graph: Any, node: str) -> str:
    """Returns the node's name without the scopes, with a number if an operation in another scope has this name."""
    names = _names.setdefault(graph, set())
    plain = node.rpartition("/")[2]
    found = next(name for name in itertools.chain([plain], (f"{plain}_{i}" for i in itertools.count(1)))
                 if name not in names)
    names.add(found)
    return found


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


def is_compiled() -> bool:
    """Whether XLA compiles the function that is being made."""
    return not tf.executing_eagerly() and _is_compiled(tf.compat.v1.get_default_graph())


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
    calls = None if graph is None else _calls_in(graph)
    if ASYNC:
        result = getattr(ops, function)(**inputs, **attributes, name=node)
        if graph is not None:
            _run_independently(graph, _operation_of(result))
        if calls is not None:
            calls.add(_operation_of(result), _operation_of(result))
        return result
    submit_name = None if node is None else node[:-1] + ".submit/"
    handle = getattr(ops, function + "_submit")(**inputs, **attributes, name=submit_name)
    if graph is None:
        return getattr(ops, function + "_wait")(**inputs, **attributes, handle=handle)
    order = _order_in(graph)
    if calls is not None:
        calls.add(handle.op, None)
    order.add_submit(handle.op)
    with tf.control_dependencies(order.submits):
        result = getattr(ops, function + "_wait")(**inputs, **attributes, handle=handle, name=node)
    order.add_wait(_operation_of(result))
    if calls is not None:
        calls.add(None, _operation_of(result))
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


# The attributes that name functions, by the type of an operation that calls them.
_FUNCTIONS = {"StatefulPartitionedCall": ("f",), "If": ("then_branch", "else_branch"), "Case": ("branches",),
              "While": ("cond", "body")}


class _Calls:
    """In a tf.function's graph: the calls of functions that have collectives, and the graph's own collectives.

    A call waits for all that are before it, and all that are after it wait for it. Own collectives between two
    calls run concurrently.
    """

    def __init__(self) -> None:
        self._looked_at = 0
        self._last: Any = None
        self._since: list[Any] = []  # own collectives after the last call

    def add(self, begin: Any, end: Any) -> None:
        """Adds an own collective: its first and its last operation. None: added by another call of this method."""
        if begin is not None:
            self.look(begin.graph)
            if self._last is not None:
                begin._add_control_input(self._last)
        if end is not None:
            self._since.append(end)

    def look(self, graph: Any) -> None:
        """Finds new calls in the graph, and lets them wait."""
        operations = graph.get_operations()
        for operation in operations[self._looked_at:]:
            if _calls_collectives(operation):
                operation._add_control_inputs(self._since + ([] if self._last is None else [self._last]))
                self._last, self._since = operation, []
        self._looked_at = len(operations)


def _calls_in(graph: Any) -> Optional[_Calls]:
    """Returns the _Calls of a tf.function's graph; None for a version 1 graph."""
    if not isinstance(graph, FuncGraph) or graph._get_control_flow_context() is not None:
        return None
    calls = getattr(graph, "_maypole_calls", None)
    if calls is None:
        calls = graph._maypole_calls = _Calls()
    return calls


def order_with_calls(begin: Any, end: Any) -> None:
    """Lets operations of a tf.function, from `begin` to `end`, run where the collectives beside them do.

    That is after the calls that come before them in the program, and before those that come after them.
    """
    calls = _calls_in(begin.graph)
    if calls is not None:
        calls.add(begin, end)


def _calls_collectives(operation: Any) -> bool:
    """Whether the operation calls a function, or has a branch, that has collectives."""
    for attribute in _FUNCTIONS.get(operation.type, ()):
        functions = operation.get_attr(attribute)
        for function in functions if isinstance(functions, (list, tuple)) else [functions]:
            called = operation.graph._get_function(function.name)
            inner = getattr(called, "graph", None)
            if inner is not None and _has_collectives(inner):
                return True
    return False


_COLLECTIVES = ("MaypoleAll", "MaypoleBarrier", "MaypoleBroadcast", "MaypoleJoin", "MaypoleReducescatter")
# Of complete graphs.
_have_collectives: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


def _has_collectives(graph: Any) -> bool:
    if graph not in _have_collectives:
        _have_collectives[graph] = any(
            operation.type.startswith(_COLLECTIVES) or _calls_collectives(operation)
            for operation in graph.get_operations())
    return _have_collectives[graph]


def _look_at_call(operation: Any, reads: Any, writes: Any) -> bool:
    """TensorFlow calls it for each operation of a complete function, before it adds control dependencies."""
    del reads, writes
    calls = _calls_in(operation.graph) if operation.type in _FUNCTIONS else None
    if calls is not None:
        calls.look(operation.graph)
    return False  # reads and writes stay what they are


register_acd_resource_resolver(_look_at_call)

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
