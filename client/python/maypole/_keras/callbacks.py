"""The callbacks of maypole.keras and maypole.tensorflow.keras, without their base class.

The base class is keras.callbacks.Callback of the Keras that is used.

Thread contract: the thread that trains.
"""

import logging
import zlib
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from maypole._keras import equal_start, variables
from maypole.arrays import same_on_all
from maypole.common import basics
from maypole.common.process_sets import global_process_set

if TYPE_CHECKING:
    from keras.callbacks import Callback, ModelCheckpoint
else:  # whichever Keras' the public classes add
    Callback = ModelCheckpoint = object

_log = logging.getLogger("maypole.keras")


class ForTraining(Callback):
    """What all callbacks do.

    If XLA cannot compile collectives in TensorFlow, they turn off a model's jit_compile before
    fit() reads it. With Keras 3 as their base class, they also work for a model of tf_keras.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_implements_"):  # Keras 2 asks whether a hook does anything
            return lambda: True
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        variables.warn_of_local_batch_norm(model)
        # Keras before 2.12 has no property.
        attribute = "jit_compile" if hasattr(type(model), "jit_compile") else "_jit_compile"
        if not getattr(model, attribute, None) or not variables.is_of_tensorflow(model):
            return
        from maypole.tensorflow import _xla
        reason = _xla.why_not()
        if reason is not None:
            _log.warning("maypole: jit_compile is switched off for %s, because XLA cannot compile a "
                         "collective here (%s); compile(jit_compile=False) says the same",
                         model.name, reason)
            setattr(model, attribute, False)


class BroadcastGlobalVariables(Callback):
    """maypole.keras.callbacks.BroadcastGlobalVariablesCallback, which has the text."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank = root_rank
        self.local_ids = {id(variable) for variable in local_variables or ()}
        self.broadcast_done = False
        self._within_step = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts before the first step, unless the model gets its variables only in that step."""
        # Some ranks may have loaded the model from a file, while on others it is not built yet.
        self.broadcast_done = False  # in an earlier fit(): since then ranks may have loaded weights, or a rank has come
        model = self.model
        variables.settle(model)
        self._within_step = bool(variables.passes_if_within_step(model.optimizer))
        rows = equal_start.places("beginning of fit()", [variables.is_built(model), self._within_step],
                                  "keras.fit", global_process_set)
        self._within_step = bool(rows[:, 1].all())
        if rows[:, 0].all():
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first step, if the model had no variables before it."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        model = self.model
        variables.build_optimizer(model, model.optimizer)
        training = variables.of_training(model, model.optimizer, *variables.other_optimizers(model))
        layers = variables.layers_of(model)
        # Between the passes of a step the sums are each rank's own.
        kept = variables.sums_over_passes(model.optimizer) if self._within_step else []
        left = self.local_ids | set(map(id, kept))
        variables.broadcast([v for v in training if id(v) not in left], self.root_rank, "keras.broadcast",
                            _vocabularies(layers))
        for layer in layers:
            if type(layer).__name__ == "Normalization":  # has computed numbers from its variables
                layer.finalize_state()
        self.broadcast_done = True


def _vocabularies(layers: Any) -> list[str]:
    """Returns texts that are equal if layers that look up words have the same ones."""
    texts: list[str] = []
    for layer in layers:
        if hasattr(layer, "get_vocabulary"):
            words = layer.get_vocabulary()
            digest = zlib.crc32("\n".join(map(str, words)).encode())
            texts.append(f"vocabulary of {type(layer).__name__} {len(texts)}: {len(words)} words, "
                         f"checksum {digest:08x}")
    return texts


class MetricAverage(Callback):
    """maypole.keras.callbacks.MetricAverageCallback, which has the text."""

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the logs that are numbers, in place."""
        logs = {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names], dtype=np.float64)
        rows = same_on_all.gather(values, names, "keras.metrics", global_process_set, _other_metrics)
        for name, value in zip(names, rows.mean(axis=0).tolist()):
            logs[name] = value


def _other_metrics(difference: str) -> ValueError:
    return ValueError(
        f"MetricAverageCallback: the ranks have different metrics: {difference}; compile with the same "
        "ones and evaluate validation data on all ranks, and let callbacks that add to the logs of "
        "some ranks come after this one")


class BestModelCheckpoint(ModelCheckpoint):
    """maypole.keras.callbacks.BestModelCheckpoint, which has the text."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0,
                 save_weights_only: bool = False, mode: str = "auto", save_freq: Any = "epoch",
                 filepath: Optional[str] = None):
        # ModelCheckpoint requires a path of the right form at once.
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(filepath or "unset" + suffix, monitor=monitor, verbose=verbose,
                         save_best_only=True, save_weights_only=save_weights_only, mode=mode,
                         save_freq=save_freq)
        self.filepath = filepath

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its filepath before training")
        if basics.rank() != 0:
            return
        variables.settle(self.model)
        super()._save_model(*args, **kwargs)
