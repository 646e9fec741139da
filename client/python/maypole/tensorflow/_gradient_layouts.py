"""Lets the ranks agree on the gradients that they have: None, dense ones, or tf.IndexedSlices.

A rank whose loss does not depend on a variable has None as its gradient, while
the others wait for it. So the ranks exchange what they have, and

    a gradient that no rank has       stays None, as in one process
    one that some ranks have          is zeros on the others
    one that is dense on a rank       is dense on all

Eagerly they do so in each step; in a graph when it is made, that is, in the first
trace of each tf.function, because there a gradient is permanently None or not. But a
rank may trace a function again when the others do not: for a last batch of another
size, or with another Python argument. So each rank keeps the agreement, and does not
ask again if it has the same gradients as in an earlier trace. If ranks had different
gradients, this applies only to arguments of new shapes; otherwise all ranks are
expected to trace the function again. A rank that then traces it alone waits for the
others, and they wait for its gradients: the rank says so after _ALONE_SECONDS.

A version 1 graph is made before it runs, and in an elastic job new ranks make it
alone, while the others wait for them in a state's sync(). There each rank assumes
that all have what it has, and share(), which sync() calls, raises an error if they
differ.

Thread contract: that of GradientReduction.
"""

import contextlib
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from maypole.arrays import same_on_all
from maypole.common import basics, objects
from maypole.common.process_sets import id_of
from maypole.tensorflow import _nodes
from maypole.tensorflow._library import as_it_is
from maypole.tensorflow.util import tf_variable

_log = logging.getLogger("maypole.tensorflow")

_ALONE_SECONDS = 5.0  # as the stall check's time

# If two ranks differ, the later one wins.
_NONE, _SPARSE_INT32, _SPARSE_INT64, _DENSE = range(4)
_WORDS = ("None", "sparse (int32)", "sparse (int64)", "dense")
_Layouts = tuple[int, ...]  # one for each variable

_FUNCTION = type(tf.function(lambda: None))


class _Place:
    """A reduction in a function, and the ranks' agreement about it.

    objects: the function and the gradients' variables. layouts: the agreed
    layouts, by this rank's own. uniform: whether all ranks had the same.
    """

    def __init__(self, objects: Sequence[Any], layouts: dict[_Layouts, _Layouts], uniform: bool):
        self._objects = [weakref.ref(thing) for thing in objects]
        self.layouts = layouts
        self.uniform = uniform
        # The shapes of the function's arguments so far.
        self._signatures: set[Any] = set()

    def is_of(self, objects: Sequence[Any]) -> bool:
        """Whether it has these very objects, not others at their former addresses."""
        return all(ref() is thing for ref, thing in zip(self._objects, objects))

    def find(self, own: _Layouts, signature: Any) -> Optional[_Layouts]:
        """Returns the agreement; None: the ranks must agree first."""
        again = self.uniform or signature not in self._signatures
        self._signatures.add(signature)
        return self.layouts.get(own) if again else None


_Key = tuple[Any, ...]

# By function, reduction, process set, the number of reductions of this name before in the graph,
# and labels: first those of share(), then with the objects' identities.
_shared: dict[_Key, tuple[dict[_Layouts, _Layouts], bool]] = {}
_places: dict[tuple[_Key, tuple[int, ...]], _Place] = {}
# This rank's gradients in the version 1 graphs of an elastic job: labels and
# layouts, by function, reduction, process set and use.
_alone: dict[_Key, set[tuple[tuple[str, ...], _Layouts]]] = {}


@as_it_is
def completed(name: str, process_set: Any, gradients: Sequence[Any], variables: Sequence[Any],
              labels: Sequence[str], dense: bool, mark: Any = None) -> list[Any]:
    """Returns the gradients in the form in which all ranks reduce them.

    name: the reduction's name. variables: the gradients' variables, as tensors or
    variables. labels: their names, which must be the same on all ranks. dense:
    whether the caller makes tf.IndexedSlices dense. mark: an _equal_weights.Mark, which the ranks
    exchange in eager execution. Raises ValueError, on all ranks, if the variables of two ranks differ.
    """
    own = tuple(_layout_of(gradient, dense) for gradient in gradients)
    labels = [f"{label} {_description(variable)}" for label, variable in zip(labels, variables)]
    if tf.executing_eagerly():
        layouts, _ = _exchanged(name, process_set, labels, own, mark)
    else:
        layouts = _agreed(name, process_set, variables, labels, own)
    return [gradient if has == layout else _converted(gradient, variable, layout)
            for gradient, variable, has, layout in zip(gradients, variables, own, layouts)]


def _agreed(name: str, process_set: Any, variables: Sequence[Any], labels: Sequence[str],
            own: _Layouts) -> _Layouts:
    """Returns what the ranks reduce in the graph that is being made."""
    graph = tf.compat.v1.get_default_graph()
    use = _nodes.count_use(name + ".layouts")
    key = _nodes.function_of(graph), name, id_of(process_set), use
    if basics.is_elastic() and not tf.compat.v1.executing_eagerly_outside_functions():
        _alone.setdefault(key, set()).add((tuple(labels), own))
        return own
    place = _place_of((*key, tuple(labels)), [_function(graph)]
                      + [v for v in map(tf_variable, variables) if hasattr(v, "read_value")])
    layouts = place.find(own, _signature(graph))
    if layouts is None:
        with _said_if_alone(name, _nodes.function_of(graph), labels, own):
            layouts, uniform = _exchanged(name, process_set, labels, own)
        place.layouts[own] = layouts
        place.uniform = place.uniform and uniform
    return layouts


@contextlib.contextmanager
def _said_if_alone(name: str, function: str, labels: Sequence[str], own: _Layouts) -> Iterator[None]:
    """A context that logs a warning if it takes long, because other ranks do not trace the function."""
    none = [label for label, layout in zip(labels, own) if layout == _NONE]
    text = (f"maypole: rank {basics.rank()} traces the function {function!r} and has waited {_ALONE_SECONDS:g} s for "
            f"the other ranks to trace it, too ({name}.layouts: which gradients each has; of {len(own)} it lacks "
            f"{none[:3] or 'none'}). If they have traced it before, they never will: call it with equal Python "
            "arguments on all ranks")
    timer = threading.Timer(_ALONE_SECONDS, _log.warning, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _place_of(key: _Key, things: Sequence[Any]) -> _Place:
    identity = key, tuple(map(id, things))
    place = _places.get(identity)
    if place is None or not place.is_of(things):
        layouts, uniform = _shared.get(key, ({}, True))
        place = _places[identity] = _Place(things, dict(layouts), uniform)
    return place


def _function(graph: Any) -> Any:
    """Returns the outermost tf.function that is being traced; if there is none, the graph.

    TensorFlow has no function for this, so this one searches the call stack.
    """
    found = None
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, _FUNCTION):
            found = owner
        frame = frame.f_back
    while found is None and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph if found is None else found


def _signature(graph: Any) -> Any:
    """The shapes and types of the inputs of a function and of those around it."""
    inputs = []
    while graph is not None:
        inputs.append(tuple((tensor.dtype, str(tensor.shape)) for tensor in getattr(graph, "inputs", ())))
        graph = getattr(graph, "outer_graph", None)
    return tuple(inputs)


@as_it_is
def share() -> None:
    """Gives all ranks every rank's agreements. All ranks must call it.

    Needed after some ranks have made graphs without the others: with new ranks, or
    after join(). Raises ValueError, on all ranks, if two have different gradients
    in a version 1 graph of an elastic job; HorovodInternalError if a rank is lost.
    """
    mine = dict(_shared)
    for (key, _), place in _places.items():
        _merge(mine, key, place.layouts, place.uniform)
    _places.clear()
    _shared.clear()
    everyones = objects.allgather_object((mine, _alone), "tensorflow.gradient_layouts")
    _check_equal([alone for _, alone in everyones])
    for theirs, _ in everyones:
        for key, agreed in theirs.items():
            _merge(_shared, key, *agreed)


def _check_equal(everyones: Sequence[dict[_Key, set[tuple[tuple[str, ...], _Layouts]]]]) -> None:
    """Raises ValueError if two ranks reduce different gradients in the graph of the same number.

    A rank may have made more graphs than another.
    """
    first: dict[_Key, tuple[int, set[tuple[tuple[str, ...], _Layouts]]]] = {}
    for rank, alone in enumerate(everyones):
        for key, graphs in alone.items():
            other, theirs = first.setdefault(key, (rank, graphs))
            if graphs & theirs:
                continue
            pairs = [(a, b) for a in sorted(theirs) for b in sorted(graphs)]
            (labels, had), (own_labels, has) = next((p for p in pairs if p[0][0] == p[1][0]), pairs[0])
            if labels != own_labels:
                raise _different_variables(
                    key[1], same_on_all.difference([list(labels), list(own_labels)], [other, rank]))
            label, before, now = next(each for each in zip(labels, had, has) if each[1] != each[2])
            raise ValueError(
                f"{key[1]}: the gradient of {label} is {_WORDS[before]} on rank {other} and {_WORDS[now]} on rank "
                f"{rank}. In an elastic job a new rank makes a version 1 graph while the others wait for it, so they "
                "cannot agree on zeros: let the loss depend on the same variables on all ranks, for example by adding "
                "0 * variable, and give sparse_as_dense=True if some gradients are sparse")


def _merge(into: dict[_Key, Any], key: _Key, layouts: dict[_Layouts, _Layouts],
           uniform: bool) -> None:
    others, others_uniform = into.get(key, ({}, True))
    into[key] = {**layouts, **others}, uniform and others_uniform


def _layout_of(gradient: Any, dense: bool) -> int:
    if gradient is None:
        return _NONE
    if dense or not isinstance(gradient, tf.IndexedSlices):
        return _DENSE
    return _SPARSE_INT32 if gradient.indices.dtype == tf.int32 else _SPARSE_INT64


def _description(variable: Any) -> str:
    # Only some ranks may know the shape of a watched tensor.
    tensor = tf_variable(variable)
    shape = tensor.shape if hasattr(tensor, "read_value") else ""
    return f"{tensor.dtype.base_dtype.name}{shape}"


def _exchanged(name: str, process_set: Any, labels: Sequence[str],
               own: _Layouts, mark: Any = None) -> tuple[_Layouts, bool]:
    """Returns the ranks' agreement, and whether all have the same gradients."""
    row = np.array(own, np.uint8)
    if mark is not None:
        row = np.concatenate([row, np.array([mark.own]).view(np.uint8)])
    rows = same_on_all.gather(row, labels, name + ".layouts", process_set,
                              functools.partial(_different_variables, name))
    if mark is not None:
        mark.compare(np.ascontiguousarray(rows[:, len(own):]).view(np.int64))
        rows = rows[:, :len(own)]
    return tuple(rows.max(axis=0, initial=_NONE).tolist()), bool((rows == rows[0]).all())


def _different_variables(name: str, difference: str) -> ValueError:
    return ValueError(
        f"{name}: the ranks reduce gradients of different variables: {difference}; create the "
        "same layers on all ranks, in the same order, or name them (a tape's gradient() takes "
        "use_generic_names=True for variables that differ in their names only); one thread at a time may reduce with "
        "tapes, or with optimizers of one name=")


def _converted(gradient: Any, variable: Any, layout: int) -> Any:
    if layout == _DENSE:
        if gradient is None:
            return tf.zeros_like(tf_variable(variable))
        return tf.convert_to_tensor(gradient)
    dtype = tf.int32 if layout == _SPARSE_INT32 else tf.int64
    if gradient is not None:  # its indices have the other type
        return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, dtype),
                                gradient.dense_shape)
    like = tf_variable(variable)
    return tf.IndexedSlices(tf.zeros([0, *like.shape[1:]], like.dtype.base_dtype),
                            tf.zeros([0], dtype), tf.constant(like.shape.as_list()))
