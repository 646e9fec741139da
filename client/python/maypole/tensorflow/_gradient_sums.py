"""Sums of the gradients of several steps, and the number of these steps.

    sums = GradientSums()
    totals = sums.add(gradients)          # in each step
    count = sums.count_step(totals)       # how many steps are in them now
    sums.end()                            # the next step begins new sums

The number of steps decides in which step ranks communicate, so it must be the
same on all of them. Therefore elastic states keep the sums, as those of Keras 3
keep its gradient accumulators, which are variables of the optimizer:

    kept = read(session)                  # at a commit
    write(kept, session)                  # back to it
    sync(session)                         # all ranks get those of rank 0

session: that of the version 1 graph with the sums; None: sums in variables that work without a session.

A state does not know which optimizers train its variables, so it keeps the sums
of all. Ranks that have made different optimizers (one may have trained
something else before) cannot tell which sums belong together, so all start
again.

Thread contract: the thread that trains calls these functions.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from maypole.common import objects
from maypole.tensorflow.util import assign

_numbers = itertools.count()
_made: "weakref.WeakSet[GradientSums]" = weakref.WeakSet()
# A version 1 graph's attribute: its sums. Not a table by graph, because sums keep their graph alive.
_OF_GRAPH = "_maypole_gradient_sums"


def new_variable(name: str, shape: Any, dtype: Any) -> Any:
    """Returns a variable of zeros, made outside the function that is being traced."""
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)


class GradientSums:
    """The sums of one optimizer, or of one aggregation.

    variable: (name, shape, dtype) -> a variable of zeros.
    counter: a variable, the steps in the sums; None before the first step.
    totals: the sums, in the order of the gradients; None where there is no gradient.
    """

    def __init__(self, variable: Callable[[str, Any, Any], Any] = new_variable):
        self.counter: Any = None
        self.totals: Optional[list[Any]] = None
        self.number = next(_numbers)
        self.in_graph = False
        self._variable = variable
        self._start: Optional[list[Any]] = None  # values of the first step's
        _made.add(self)

    def add(self, gradients: Sequence[Any], shapes: Any = None) -> list[Any]:
        """Adds a step's gradients; returns the sums.

        shapes: the gradients' shapes, if the gradients may not know them. Raises ValueError
        if there is a gradient where there was none in the first step, or none
        where there was one.
        """
        totals = self.totals
        if totals is None:
            totals = self._create(gradients, shapes or [
                None if gradient is None else gradient.shape
                for gradient in gradients])
        there = [gradient is not None for gradient in gradients]
        if there != [total is not None for total in totals]:
            raise ValueError(
                f"backward_passes_per_step: {sum(there)} gradients of "
                f"{len(there)} variables, expected the same ones in each step")
        first = tf.equal(self.counter.read_value(), 0)
        return [None if gradient is None else _added(total, gradient, first)
                for total, gradient in zip(totals, gradients)]

    def count_step(self, after: Sequence[Any]) -> Any:
        """Counts a step; returns the number of steps. after: the result of add()."""
        with tf.control_dependencies([t for t in after if t is not None]):
            return self.counter.assign_add(1, read_value=True)

    def end(self) -> Any:
        """Makes the next step the first one; returns the operation that must run for this."""
        return self.counter.assign(0, read_value=True)

    def read(self, session: Any) -> Optional[list[Any]]:
        """Returns the number of steps and the sums, as arrays; None if there is no step in them."""
        if self.counter is None:
            return self._start
        if not int(_values([self.counter], session)[0]):
            return None
        return _values(self._variables(), session)

    def write(self, values: Optional[list[Any]], session: Any) -> None:
        """Sets what read() has returned, here or on another rank."""
        if self.counter is None:
            self._start = values
            return
        for variable, value in zip(self._variables(), values or [0]):
            assign(variable, value, session)

    def _variables(self) -> list[Any]:
        return [self.counter] + [t for t in self.totals or () if t is not None]

    def _create(self, gradients: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
        self.counter = self._variable("aggregation_counter", (), tf.int32)
        self.totals = totals = [
            None if gradient is None else self._variable(
                f"aggregated_gradient_{i}", shape, gradient.dtype)
            for i, (gradient, shape) in enumerate(zip(gradients, shapes))]
        with tf.init_scope():
            self.in_graph = not tf.executing_eagerly()
            if self.in_graph:
                graph = tf.compat.v1.get_default_graph()
                if not hasattr(graph, _OF_GRAPH):
                    setattr(graph, _OF_GRAPH, [])
                getattr(graph, _OF_GRAPH).append(self)
            elif self._start is not None:
                self.write(self._start, None)
        self._start = None
        return totals


def _added(total: Any, gradient: Any, first: Any) -> Any:
    before = total.read_value()
    # Not a product with zero, because the last sum may have been infinite.
    gradient += tf.where(first, tf.zeros_like(before), before)
    return tf.convert_to_tensor(total.assign(gradient, read_value=True))


def _values(variables: list[Any], session: Any) -> list[Any]:
    if session is not None:
        return session.run(variables)
    return [variable.numpy() for variable in variables]


def _sums_of(session: Any) -> dict[int, GradientSums]:
    """Returns all sums, by a number that is the same on ranks that run the same program."""
    if session is None:
        return {sums.number: sums for sums in _made if not sums.in_graph}
    return dict(enumerate(getattr(session.graph, _OF_GRAPH, ())))


def read(session: Any) -> dict[int, Any]:
    """Returns the values of all sums with at least one step."""
    values = {number: sums.read(session)
              for number, sums in _sums_of(session).items()}
    return {number: v for number, v in values.items() if v is not None}


def write(values: dict[int, Any], session: Any) -> None:
    """Sets what read() has returned; all other sums start again."""
    for number, sums in _sums_of(session).items():
        sums.write(values.get(number), session)


def sync(session: Any) -> None:
    """Gives all ranks the values of rank 0, or makes all start again; see above.

    All ranks must call it. Raises HorovodInternalError if a rank is lost.
    """
    name = "tensorflow.gradient_sums"
    numbers = objects.allgather_object(sorted(_sums_of(session)), name)
    values: dict[int, Any] = {}
    if numbers[0] and all(others == numbers[0] for others in numbers):
        values = objects.broadcast_object(read(session), 0, name)
    write(values, session)
