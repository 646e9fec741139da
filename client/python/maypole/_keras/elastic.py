"""The state of elastic training of Keras models, and the callbacks that keep it.

Thread contract: the thread that trains.
"""

import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from maypole._keras import variables
from maypole.common import basics, objects
from maypole.common.elastic import ObjectState, run_converting
from maypole.common.exceptions import HorovodInternalError


def internal_error(error: Exception) -> Optional[HorovodInternalError]:
    """Returns the error of the collective that caused one of TensorFlow or JAX; None for all other errors."""
    if isinstance(error, HorovodInternalError):
        return None
    found = None
    if "maypole.tensorflow" in sys.modules:
        from maypole.tensorflow._elastic import internal_error as of_tensorflow
        found = of_tensorflow(error)
    if found is None and "maypole.jax" in sys.modules:
        from maypole.jax.elastic import internal_error as of_jax
        found = of_jax(error)
    return found


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    As maypole.common.elastic.run, but an error of TensorFlow or JAX that a failed collective has caused counts
    as that collective's error.
    """
    return run_converting(func, internal_error)


class _KeptValues:
    """Keeps the values of variables at the last commit, as arrays, and sets them again."""

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._values: list[np.ndarray] = []

    def save(self, tracked: Sequence[Any]) -> None:
        self._variables, self._values = list(tracked), variables.read(tracked)

    def restore(self) -> None:
        variables.write(self._variables, self._values)

    def sync(self, tracked: Sequence[Any]) -> None:
        """Gives all ranks the variables of rank 0."""
        variables.broadcast(tracked, 0, "keras.state")


class VariablesState(ObjectState):
    """A state of variables, and of objects as attributes.

    kept: an object with save() and sync() for variables, and restore() for the saved ones.
    """

    def __init__(self, kept: Any, **kwargs: Any):
        tracked = self._variables()
        self._kept = kept
        super().__init__(objects.broadcast_object, basics.rank, **kwargs)
        self._kept.save(tracked)

    def save(self) -> None:
        """Keeps copies of the variables and attributes."""
        self._kept.save(self._variables())
        super().save()

    def restore(self) -> None:
        """Sets variables and attributes to their values at the last save()."""
        self._kept.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the variables and attributes of rank 0, and saves them."""
        self._kept.sync(self._variables())
        super().sync()  # saves

    def _variables(self) -> list[Any]:
        raise NotImplementedError


class KerasState(VariablesState):
    """The state of training: a model, its optimizer, and objects such as epoch=0 and batch=0.

    It also has the optimizers that are other attributes of the model. Those that are not built yet are built for all of
    the model's trainable variables. On TensorFlow it also has the optimizers' sums over incomplete passes.

    Args:
        model: it must be built, so that a new rank has variables for the others' values.
        optimizer: None: the model's. compile() must come before the state is made.
        **kwargs: the state's attributes, with their values.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any):
        self.model = model
        own = getattr(model, "optimizer", None)
        self._optimizer = None if optimizer is own else optimizer
        super().__init__(self._new_kept_values(), **kwargs)

    @property
    def optimizer(self) -> Any:
        """The optimizer that was given; otherwise the model's present one, because compile() gives it another."""
        return self._optimizer or getattr(self.model, "optimizer", None)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def sync(self) -> None:
        """As VariablesState's.

        Raises ValueError if the model has no optimizer yet, and there are other ranks or may be.
        """
        if (basics.is_elastic() or basics.size() > 1) and not any(self._optimizers()):
            raise ValueError(f"{type(self).__name__}: the model has no optimizer yet; compile it before the state is "
                             "made, or give optimizer=: a rank that comes later gets the others' momentums")
        super().sync()

    def restore(self) -> None:
        variables.drop_jax_state(self.model)
        super().restore()

    def reset(self) -> None:
        # Compiled steps may contain the number of ranks.
        self.model.train_function = None
        # Keras 2's fit() keeps the validation data, which may be of a shard, until it ends, and an error has ended it.
        if getattr(self.model, "_eval_data_handler", None) is not None:
            self.model._eval_data_handler = None
        if "maypole.jax" in sys.modules:
            sys.modules["jax"].clear_caches()

    def _new_kept_values(self) -> Any:
        if not variables.is_of_tensorflow(self.model):
            return _KeptValues()
        from maypole.tensorflow._elastic import keras_values
        return keras_values(None)

    def _variables(self) -> list[Any]:
        """Returns all variables, with valid values."""
        if not self.model.built:
            raise ValueError(f"{type(self).__name__}: the model has no variables yet; build it "
                             "(give it an Input, or call it once) before the state is made")
        variables.settle(self.model)
        optimizers = self._optimizers()
        for optimizer in optimizers:
            variables.build_optimizer(self.model, optimizer)
        return variables.of_training(self.model, *optimizers)

    def _passes_if_within_step(self) -> int:
        variables.settle(self.model)
        return max(map(variables.passes_if_within_step, self._optimizers()))

    def _optimizers(self) -> list[Any]:
        return [self.optimizer] + variables.other_optimizers(self.model)


def _batches_done(callback: Any, batch: int) -> int:
    """Returns how many batches of the epoch are done. batch: the number that on_train_batch_end() gets.

    If a call of the step makes several (steps_per_execution), that is the first one's, a multiple of their number, in
    Keras 3.0 to 3.10, and the last one's in others.
    """
    together: int = getattr(getattr(callback, "model", None), "steps_per_execution", None) or 1
    steps: int = (getattr(callback, "params", None) or {}).get("steps") or batch + together
    return batch + 1 if batch % together else max(batch + 1, min(batch + together, steps))


class CommitState:
    """maypole.keras.elastic.CommitStateCallback, which has the text."""

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"CommitStateCallback: batches_per_commit={batches_per_commit}, "
                             "expected a positive integer")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit
        self._done = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit  # the same on all ranks

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = _batches_done(self, batch)
        self.batches_remaining -= done - self._done
        self._done = done
        if self.batches_remaining <= 0:
            self.batches_remaining = self.batches_per_commit
            # At the last batch on_epoch_end() commits: between the two, fit() would have no batches to continue with.
            if done != (getattr(self, "params", None) or {}).get("steps"):
                self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchState:
    """maypole.keras.elastic.UpdateBatchStateCallback, which has the text."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done_before = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done_before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._done_before + _batches_done(self, batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochState:
    """maypole.keras.elastic.UpdateEpochStateCallback, which has the text."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done_before: Optional[int] = None  # when Keras began to count epochs at 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._done_before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._done_before is None:  # Keras' first epoch is fit()'s initial_epoch
            self._done_before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.on_epoch_begin(epoch)  # for loops that call only this
        assert self._done_before is not None
        self.state.epoch = self._done_before + epoch + 1
