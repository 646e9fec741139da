"""The TensorFlow part of elastic states: those of maypole.tensorflow.elastic, and Keras'.

Thread contract: the thread that trains.
"""

from collections.abc import Iterable
from typing import Any, Optional

import tensorflow as tf

from maypole._keras import variables as values_of
from maypole.common.exceptions import HorovodInternalError, from_framework
from maypole.tensorflow import _gradient_layouts, _gradient_sums
from maypole.tensorflow.functions import broadcast_object
from maypole.tensorflow.util import assign


def internal_error(error: Exception) -> Optional[HorovodInternalError]:
    """Returns the error of a collective that TensorFlow has reported.

    None if the error has another cause, or says that arguments were wrong.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    # Both use gRPC's codes; TensorFlow reports a lost rank as UNKNOWN.
    return from_framework(error.message, error.error_code)


class KeptValues:
    """Keeps the values of variables at the last commit, and sets them again.

    It also keeps the sums of gradients that have not been applied to them yet.

    session: that of a version 1 graph; None otherwise.
    """

    def __init__(self, session: Any):
        self._given = session
        self._variables: list[Any] = []
        self._values: list[Any] = []
        self._sums: Any = {}

    @property
    def _session(self) -> Any:
        """Returns the session itself, because a MonitoredSession's own run() would call its hooks.

        It is fetched each time, because a MonitoredSession has a new one after an error.
        """
        if hasattr(self._given, "_tf_sess"):
            return self._given._tf_sess()
        return self._given

    def save(self, variables: Iterable[Any]) -> None:
        session = self._session
        self._variables = list(variables)
        if session is not None:
            self._values = session.run(self._variables)
        else:
            self._values = [tf.identity(_tensor(v)) for v in self._variables]
        self._sums = _gradient_sums.read(session)

    def sync(self, variables: Iterable[Any]) -> None:
        """Gives all ranks the variables of rank 0."""
        if self._session is None:
            values_of.broadcast(list(variables), 0, "tensorflow.state")
        else:  # not by new operations, because the graph may be finalized
            self.save(variables)
            self._values = broadcast_object(self._values)
            self.restore()
        _gradient_sums.sync(self._session)
        _gradient_layouts.share()

    def restore(self) -> None:
        session = self._session
        for variable, value in zip(self._variables, self._values):
            assign(variable, value, session)
        _gradient_sums.write(self._sums, session)


def _tensor(variable: Any) -> Any:
    return variable if hasattr(variable, "ref") else variable.value


def keras_values(backend: Any) -> Any:
    """Returns the object that keeps the values of a model's variables.

    Args:
        backend: in a version 1 graph, Keras' backend, whose get_session() is used; None: that of
            tf.compat.v1.keras.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return KeptValues(None)
    return KeptValues((backend or tf.compat.v1.keras.backend).get_session())
