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

from maypole._keras import variables
from maypole.common import basics
from maypole.common.elastic import ObjectState, State, run_converting
from maypole.common.exceptions import HorovodInternalError, from_framework
from maypole.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState",
           "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and
    takes in new ones; see maypole.common.elastic.

    An error of TensorFlow's that a collective has caused becomes the
    HorovodInternalError that it stems from.
    """

    return run_converting(func, internal_error)


def internal_error(error: Exception) -> Optional[HorovodInternalError]:
    """The error of a collective that TensorFlow has reported; None if it comes
    from something else, or says that arguments were wrong."""
    if not isinstance(error, tf.errors.OpError):
        return None
    # Both have gRPC's codes; that of a lost rank is UNKNOWN to TensorFlow.
    return from_framework(error.message, error.error_code)


class _KeptValues:
    """The values of variables at the last commit, and how to set them again.

    session: that of a version 1 graph; None otherwise.
    """

    def __init__(self, session: Any):
        # A MonitoredSession's own run() would call its hooks.
        self._session = (session._tf_sess()  # pylint: disable=protected-access
                         if hasattr(session, "_tf_sess") else session)
        self._variables: List[Any] = []
        self._values: List[Any] = []

    def save(self, variables: Iterable[Any]) -> None:
        self._variables = list(variables)
        if self._session is not None:
            self._values = self._session.run(self._variables)
        else:
            self._values = [tf.identity(_tensor(v)) for v in self._variables]

    def sync(self, variables: Iterable[Any]) -> None:
        """Gives all ranks the variables of rank 0."""
        if self._session is None:
            broadcast_variables(list(variables), 0)
            return
        # Not by operations, because the graph may be finalized.
        self.save(variables)
        self._values = broadcast_object(self._values)
        self.restore()

    def restore(self) -> None:
        for variable, value in zip(self._variables, self._values):
            if self._session is None:
                variable.assign(value)
            else:
                # Adds nothing to the graph, which may be finalized.
                start = variable.initializer
                self._session.run(start, {start.inputs[1]: value})


def _tensor(variable: Any) -> Any:
    return variable if hasattr(variable, "ref") else variable.value


class TensorFlowKerasState(ObjectState):
    """A Keras model, its optimizer, and objects, which are attributes.

    model: must be built. optimizer: None: the one that it is compiled with.
    backend: in a version 1 graph, Keras' backend, whose get_session() is used.
    Raises ValueError for a model that is not built, or has no optimizer.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None,
                 **kwargs: Any):
        if not getattr(model, "built", True):
            raise ValueError("TensorFlowKerasState: the model is not built: "
                             "call model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise ValueError("TensorFlowKerasState: the model has no optimizer: "
                             "compile it, or give optimizer=")
        _build_optimizer(self.optimizer, model)
        session = None
        if not tf.compat.v1.executing_eagerly_outside_functions():
            session = (backend or tf.compat.v1.keras.backend).get_session()
        self._kept = _KeptValues(session)
        super().__init__(broadcast_object, basics.rank, **kwargs)
        self._kept.save(self._variables())

    def save(self) -> None:
        self._kept.save(self._variables())
        super().save()

    def restore(self) -> None:
        self._kept.restore()
        super().restore()

    def sync(self) -> None:
        self._kept.sync(self._variables())
        super().sync()  # saves

    def reset(self) -> None:
        # fit() compiles again: its step may contain the number of ranks.
        self.model.train_function = None

    def _variables(self) -> List[Any]:
        if tf.executing_eagerly():
            return variables.of_training(self.model, self.optimizer)
        ours = list(self.model.variables)
        # With Keras 3 a model's variables may have its optimizer's.
        known = {id(variable) for variable in ours}
        of_optimizer = self.optimizer.variables
        if callable(of_optimizer):
            of_optimizer = of_optimizer()
        return ours + [v for v in of_optimizer if id(v) not in known]


def _build_optimizer(optimizer: Any, model: Any) -> None:
    """Makes its variables, so that ranks have the same ones from the start."""
    if hasattr(optimizer, "_create_all_weights"):
        with tf.init_scope():
            optimizer._create_all_weights(model.trainable_variables)  # pylint: disable=protected-access
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


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
        self._kept.save(self.variables)
        super().save()

    def restore(self) -> None:
        self._kept.restore()
        super().restore()

    def sync(self) -> None:
        self._kept.sync(self.variables)
        super().sync()  # saves
