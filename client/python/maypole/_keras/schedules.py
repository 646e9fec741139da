"""The callbacks that set the learning rate.

Momentum correction (Goyal et al., "Accurate, Large Minibatch SGD", section 3.2): an optimizer's
momentum is a sum of past gradients times their learning rates. When the rate changes by a factor,
so must this sum. Keras compiles the optimizer's constants into the training step, so the sum itself
is multiplied, once, when the rate changes.

Thread contract: the thread that trains.
"""

from typing import Any, Callable, Optional, Union

from maypole._keras import variables
from maypole._keras.callbacks import Callback
from maypole._keras.values import as_array, assign
from maypole.common import basics


class LearningRateSchedule(Callback):
    """maypole.keras.callbacks.LearningRateScheduleCallback, which has the text."""

    def __init__(self, initial_lr: float, multiplier: Union[float, Callable[[float], float]],
                 start_epoch: int = 0, end_epoch: Optional[int] = None, staircase: bool = True,
                 momentum_correction: bool = True, steps_per_epoch: Optional[int] = None):
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr=None: expected a number")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else (
            lambda epoch: multiplier**(epoch - start_epoch))
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(f"{type(self).__name__}: fit() does not know the number of steps of "
                             "an epoch; pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.current_epoch < self.start_epoch or (self.end_epoch is not None
                                                     and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(self.current_epoch + self._part_of_epoch(batch))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            variables.settle(self.model)
            logs["lr"] = self._rate()

    def _part_of_epoch(self, batches: int) -> float:
        assert self.steps_per_epoch is not None  # set by on_train_begin()
        return batches / self.steps_per_epoch

    def _rate(self) -> float:
        return float(as_array(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        variables.settle(self.model)
        optimizer = self.model.optimizer
        schedule = variables.schedule_of(optimizer)
        if schedule is not None:
            raise ValueError(f"{type(self).__name__} cannot set the learning rate of an optimizer that has a "
                             f"{type(schedule).__name__}; give the optimizer a number, or leave out the callback")
        old, new = self._rate(), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old != 0 and new != old:
            for momentum in _momentums(self.model, variables.optimizer_of(optimizer)):
                assign(momentum, momentum * (new / old))


def _momentums(model: Any, optimizer: Any) -> list[Any]:
    """Returns the sums of past gradients times learning rates; empty if the optimizer has none."""
    if not hasattr(optimizer, "momentum"):
        return []
    for attribute in ("momentums", "_momentums"):
        if hasattr(optimizer, attribute):
            return [m for m in getattr(optimizer, attribute) if m is not None]
    if "momentum" not in getattr(optimizer, "get_slot_names", list)():
        return []
    return [optimizer.get_slot(v, "momentum") for v in model.trainable_variables]


class LearningRateWarmup(LearningRateSchedule):
    """maypole.keras.callbacks.LearningRateWarmupCallback, which has the text."""

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                 steps_per_epoch: Optional[int] = None, verbose: int = 0):

        def multiplier(epoch: float) -> float:
            # Counts the batch that begins, so that an epoch ends at a whole number.
            epoch += self._part_of_epoch(1)
            return (1 + epoch * (basics.size() - 1) / warmup_epochs) / basics.size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction,
                         steps_per_epoch)
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and basics.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._rate():g}.",
                  flush=True)
