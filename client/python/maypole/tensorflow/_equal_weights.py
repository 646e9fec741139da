"""Compares what the ranks train in loops of their own, from time to time: maypole.arrays.same_values.

    with tf.control_dependencies(_equal_weights.checked(name, process_set, gradients, variables, labels)):
        ... reduce the gradients

A tape, and an optimizer of version 1, knows the variables of its gradients, but not the optimizer's state. Another
learning rate or number of iterations shows in the weights one step later.

In a tf.function the steps are counted by a number in TensorFlow's memory, and a Python function compares when it is
due; between that a step costs a few operations on a scalar. The function reads the variables in a branch, which
TensorFlow orders with what writes them. The counter is not a tf.Variable, which a function that is saved could not
have. An elastic state's sync() makes the ranks equal, and all begin again. Eagerly, where the ranks exchange which
gradients they have in each step, they also exchange a checksum of the smallest variable (Mark), and compare all if it
differs. Nothing is compared

    in version 1 graphs     where the number of steps had to be initialized
    where XLA compiles      which has no Python functions
    of local sources        whose gradients stay on their rank, and of sources that are no variables

Thread contract: that of GradientReduction.
"""

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from maypole import _native
from maypole.arrays import same_values
from maypole.common import elastic
from maypole.common.process_sets import id_of
from maypole.common.recurrence import MOST_STEPS
from maypole.tensorflow import _nodes
from maypole.tensorflow.util import tf_variable

_numbers = itertools.count()
# A graph's attribute: the handles of counters. Not a table by graph, because a handle keeps its graph alive.
_HANDLES = "_maypole_step_counters"


class StepCounter:
    """Counts the steps of one loop, and calls a function when the ranks are to be compared.

    recurring: decides when. It has its own count eagerly and in functions.
    """

    def __init__(self, who: str):
        self._recurring = same_values.Recurring(who), same_values.Recurring(who)
        self._shared_name: Optional[str] = None
        _counters.add(self)

    def forget(self) -> None:
        """Begins again; all ranks must call it, eagerly."""
        for recurring in self._recurring:
            recurring.forget()
        if self._shared_name is not None:
            self._set(self._new_handle(), tf.constant(1, tf.int64))

    def expect_now(self) -> None:
        """Makes the comparison due in this step, which is made eagerly; all ranks must call it."""
        self._recurring[0].expect_now()

    def was_equal(self) -> bool:
        """Whether the ranks were equal in an earlier eager step."""
        return self._recurring[0].were_equal

    def count(self, variables: Sequence[Any], facts_of: Callable[[Sequence[np.ndarray]], Sequence[same_values.Fact]],
              name: str, process_set: Any) -> list[Any]:
        """Counts a step, and compares the ranks if that is due.

        variables: those with whose values facts_of() is called. Returns operations that must run before the gradients
        are reduced; none in eager execution, where it raises ValueError, on all ranks, if they differ.
        """
        if tf.executing_eagerly():
            recurring = self._recurring[0]
            recurring.until_next -= 1
            if recurring.until_next <= 0:
                recurring.run(facts_of([_value(v).numpy() for v in variables]), name, process_set)
            return []

        def run(*values: np.ndarray) -> np.ndarray:
            if _is_stopped():
                return np.array(MOST_STEPS, np.int64)
            return np.array(self._recurring[1].run(facts_of(values), name + ".graph", process_set), np.int64)

        return [self._counted(variables, run)]

    def _counted(self, variables: Sequence[Any], run: Callable[..., np.ndarray]) -> Any:
        handle = self._handle()
        with tf.device("/cpu:0"):
            before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
            left = before - 1

            def due() -> Any:
                following = tf.numpy_function(run, [_value(v) for v in variables], tf.int64)
                following.set_shape([])
                return following

            following = tf.cond(left <= 0, due, lambda: left)
            _call_branches(following)
            counted = self._set(handle, following)
        # Functions that this one calls have handles of their own, so TensorFlow does not know that they count, too.
        _nodes.order_with_calls(before.op, counted)
        return counted

    def _handle(self) -> Any:
        if self._shared_name is None:
            self._shared_name = f"maypole_steps_{next(_numbers)}"
            with tf.init_scope():
                self._set(self._new_handle(), tf.constant(1, tf.int64))
        graph = tf.compat.v1.get_default_graph()
        handles = getattr(graph, _HANDLES, None)
        if handles is None:
            handles = {}
            setattr(graph, _HANDLES, handles)
        if self._shared_name not in handles:
            handles[self._shared_name] = self._new_handle()
        return handles[self._shared_name]

    def _new_handle(self) -> Any:
        with tf.device("/cpu:0"):
            return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=self._shared_name)

    @staticmethod
    def _set(handle: Any, value: Any) -> Any:
        with tf.device("/cpu:0"):
            return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _call_branches(result: Any) -> None:
    """Makes the branches of a tf.cond functions that are called.

    Otherwise TensorFlow makes them a part of the graph, with an operation for each of their inputs, also if not taken.
    """
    operation = result.op
    while operation.type not in ("If", "StatelessIf") and operation.inputs:
        operation = operation.inputs[0].op
    if operation.type == "If":
        operation._set_attr("_lower_using_switch_merge", tf.compat.v1.AttrValue(b=False))


_counters: "weakref.WeakSet[StepCounter]" = weakref.WeakSet()


def _value(variable: Any) -> Any:
    # Not read_value(), of which tapes take note.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype.base_dtype)


def forget() -> None:
    """Begins all comparisons again, on all ranks: those that have joined, or are new, have missed steps."""
    for counter in list(_counters):
        counter.forget()


elastic.call_after_sync(forget)
# Whether some function joins, among the counts, which an elastic job's new ranks get from the others.
_STOPPED = "tensorflow", "joins"


def stop() -> None:
    """Ends all comparisons: a function joins, after which the ranks have made different numbers of steps."""
    _native.library().counts[_STOPPED] = 1


def _is_stopped() -> bool:
    return _native.library().counts[_STOPPED] > 0


def is_possible() -> bool:
    """Whether the ranks can be compared where this step is being made."""
    if _is_stopped():
        return False
    if tf.executing_eagerly():
        return True
    return tf.compat.v1.executing_eagerly_outside_functions() and not _nodes.is_compiled()


def is_comparable(variable: Any) -> bool:
    """Whether it is a variable whose value can be read; watched tensors and version 1's references are not."""
    return hasattr(variable, "read_value") and hasattr(variable, "handle")


class _Loop:
    """The counter of the steps with certain variables.

    smallest: of those that were trained last; None if there is none.
    """

    def __init__(self, name: str, variables: Sequence[Any], forget: Callable[[Any], None]):
        self.counter = StepCounter(name)
        self._variables = [weakref.ref(v, forget) for v in variables]
        self.smallest: Any = lambda: None  # a weak reference

    def is_of(self, variables: Sequence[Any]) -> bool:
        """Whether it has these very variables, not others at their former addresses."""
        return all(ref() is variable for ref, variable in zip(self._variables, variables))


_loops: dict[tuple[Any, ...], _Loop] = {}


def _loop_of(name: str, process_set: Any, variables: Sequence[Any]) -> _Loop:
    key = name, id_of(process_set), tuple(map(id, variables))
    loop = _loops.get(key)
    if loop is None or not loop.is_of(variables):
        loop = _loops[key] = _Loop(name, variables, functools.partial(_drop, _loops, key))
    return loop


def _drop(loops: dict[tuple[Any, ...], _Loop], key: tuple[Any, ...], _: Any) -> None:
    loops.pop(key, None)


def _comparable(variables: Sequence[Any]) -> list[Any]:
    return [v for v in map(tf_variable, variables) if is_comparable(v)]


class Mark:
    """What the ranks exchange in each eager step.

    own: a checksum of the smallest variable; 0 before the ranks were equal, LEFT_OUT on a rank that differs on purpose.
    differs: set if that of another rank differs.
    """

    LEFT_OUT = -1

    def __init__(self, name: str, process_set: Any, variables: Sequence[Any]):
        self.own = 0
        self.differs = False
        known = _comparable(variables) if tf.executing_eagerly() and is_possible() else []
        if not known:
            return
        loop = _loop_of(name, process_set, known)
        smallest = loop.smallest()
        if same_values.is_left_out():
            self.own = self.LEFT_OUT
        elif loop.counter.was_equal() and smallest is not None:
            self.own = same_values.checksum_of(_value(smallest).numpy())

    def compare(self, everyones: np.ndarray) -> None:
        """Sets `differs`. everyones: `own` of all ranks."""
        self.differs = len(np.unique(everyones[everyones != self.LEFT_OUT])) > 1


def checked(name: str, process_set: Any, gradients: Sequence[Any], variables: Sequence[Any],
            labels: Sequence[str], mark: Optional[Mark] = None) -> list[Any]:
    """Counts a step in which the gradients are reduced; see StepCounter.count().

    gradients: as all ranks have them (_gradient_layouts.py). labels: the variables' names, the same on all ranks.
    mark: what the ranks have exchanged in this step.
    """
    known = [(gradient, tf_variable(variable), label) for gradient, variable, label in zip(gradients, variables, labels)
             if gradient is not None and is_comparable(tf_variable(variable))]
    if not known or not is_possible():
        return []
    rounds = [isinstance(gradient, tf.IndexedSlices) for gradient, _, _ in known]

    def facts_of(values: Sequence[np.ndarray]) -> list[same_values.Fact]:
        return [same_values.fact_of_array(f"weights of parameter {label!r}", label, value, True, may_round)
                for value, may_round, (_, _, label) in zip(values, rounds, known)]

    loop = _loop_of(name, process_set, _comparable(variables))
    dense = [variable for (_, variable, _), may_round in zip(known, rounds) if not may_round]
    if dense:
        loop.smallest = weakref.ref(min(dense, key=lambda v: v.shape.num_elements() or 0))
    if mark is not None and mark.differs:
        loop.counter.expect_now()
    use = _nodes.count_use(name + ".weights")
    return loop.counter.count([variable for _, variable, _ in known], facts_of,
                              f"{name}.{labels[0]}+{len(labels) - 1}.weights.{use}", process_set)
