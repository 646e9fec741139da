"""Elastic training with TensorFlow: docs/elastic.md.

    import maypole.tensorflow as hvd

    hvd.init()
    model, optimizer = ...

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            train_step(next(batches))
            state.batch += 1
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))

Thread contract: one thread trains.
"""

from typing import Any, Callable, Iterable, List, Optional

import tensorflow as tf

from maypole._keras import variables as values_of
from maypole._keras.elastic import KerasState
from maypole.common import basics
from maypole.common.elastic import ObjectState, State, run_converting
from maypole.common.exceptions import HorovodInternalError, from_framework
from maypole.tensorflow import _gradient_layouts, _gradient_sums
from maypole.tensorflow.functions import broadcast_object

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState",
           "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    See maypole.common.elastic.

    An error of TensorFlow's that a collective has caused becomes the
    HorovodInternalError that it stems from.
    """
    return run_converting(func, internal_error)


def internal_error(error: Exception) -> Optional[HorovodInternalError]:
    """The error of a collective that TensorFlow has reported.

    None if it comes from something else, or says that arguments were wrong.
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    # Both have gRPC's codes; that of a lost rank is UNKNOWN to TensorFlow.
    return from_framework(error.message, error.error_code)


class _KeptValues:
    """The values of variables at the last commit, and how to set them again.

    With the sums of gradients that are to change them.

    session: that of a version 1 graph; None otherwise.
    """

    def __init__(self, session: Any):
        self._given = session
        self._variables: List[Any] = []
        self._values: List[Any] = []
        self._sums: Any = {}

    @property
    def _session(self) -> Any:
        """The session itself, because a MonitoredSession's own run() would call its hooks.

        Asked each time: it has a new one after an error.
        """
        if hasattr(self._given, "_tf_sess"):
            return self._given._tf_sess()  # pylint: disable=protected-access
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
        else:  # not by operations, because the graph may be finalized
            self.save(variables)
            self._values = broadcast_object(self._values)
            self.restore()
        _gradient_sums.sync(self._session)
        _gradient_layouts.share()

    def restore(self) -> None:
        session = self._session
        for variable, value in zip(self._variables, self._values):
            if session is None:
                variable.assign(value)
            else:
                # Adds nothing to the graph, which may be finalized.
                start = variable.initializer
                session.run(start, {start.inputs[1]: value})
        _gradient_sums.write(self._sums, session)


def _tensor(variable: Any) -> Any:
    return variable if hasattr(variable, "ref") else variable.value


def keras_values(backend: Any) -> Any:
    """What keeps the values of a model's variables.

    backend: in a version 1 graph, Keras' backend, whose get_session() is used;
    None: that of tf.compat.v1.keras.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return _KeptValues(None)
    return _KeptValues((backend or tf.compat.v1.keras.backend).get_session())


class TensorFlowKerasState(KerasState):
    """KerasState with Horovod's argument `backend`: see keras_values().

    Raises ValueError for a model that is not built, or has no optimizer.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None,
                 **kwargs: Any):
        self._backend = backend
        if optimizer is None and getattr(model, "optimizer", None) is None:
            raise ValueError("TensorFlowKerasState: the model has no optimizer: "
                             "compile it, or give optimizer=")
        super().__init__(model, optimizer, **kwargs)

    def _new_kept_values(self) -> Any:
        return keras_values(self._backend)


class TensorFlowState(ObjectState):
    """Variables, and objects, which are attributes.

    variables: None: all global variables of the version 1 graph. session: in
    such a graph, the session; None: the default one. (A MonitoredTrainingSession
    is one too.) Raises ValueError if there are no variables or no session.
    """

    def __init__(self, variables: Any = None, session: Any = None,
                 **kwargs: Any):
        eager = tf.compat.v1.executing_eagerly_outside_functions()
        if variables is None:
            variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        if not self.variables:
            raise ValueError("TensorFlowState: there are no variables; give "
                             "variables=, as eager execution has no global ones")
        if not eager and session is None:
            session = tf.compat.v1.get_default_session()
            if session is None:
                raise ValueError("TensorFlowState: there is no default session; "
                                 "give session=")
        self.session = None if eager else session
        self._kept = _KeptValues(self.session)
        super().__init__(broadcast_object, basics.rank, **kwargs)
        self._kept.save(self.variables)

    def save(self) -> None:
        """Keeps copies of the variables and attributes."""
        self._kept.save(self.variables)
        super().save()

    def restore(self) -> None:
        """Sets variables and attributes to their values at the last save()."""
        self._kept.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the variables and attributes of rank 0, and saves them."""
        self._kept.sync(self.variables)
        super().sync()  # saves
