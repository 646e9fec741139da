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

from typing import Any, Callable

import tensorflow as tf

from maypole._keras.elastic import KerasState, VariablesState
from maypole.common.elastic import ObjectState, State, run_converting
from maypole.tensorflow._elastic import KeptValues, internal_error, keras_values

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState",
           "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    See maypole.common.elastic.

    If a collective has caused an error of TensorFlow, this becomes the collective's HorovodInternalError.

    Args:
        func: func(state, ...), which trains.
    """
    return run_converting(func, internal_error)


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


class TensorFlowState(VariablesState):
    """A state of variables, and of objects as attributes.

    Args:
        variables: None: all global variables of the version 1 graph.
        session: the session of a version 1 graph, also a MonitoredTrainingSession; None: the default session.
        **kwargs: the state's attributes, with their values.

    Raises:
        ValueError: there are no variables or no session.
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
        super().__init__(KeptValues(self.session), **kwargs)

    def _variables(self) -> list[Any]:
        return self.variables
