"""The training of KerasEstimator, in each rank."""

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import keras

from maypole.common import objects
from maypole.spark.keras import models


class Training(NamedTuple):
    """What a rank needs to train a Keras model.

    model: the bytes of a .keras file; if is_checkpoint, of a checkpoint with the optimizer's state. optimizer: a
    name, a configuration, or None for the model's own. rate: the learning rate for one rank, if it is a number.
    compile: pickled losses, loss weights, metrics, callbacks, checkpoint callback.
    """

    model: bytes
    is_checkpoint: bool
    custom_objects: Any
    optimizer: Any
    rate: Optional[float]
    compile: bytearray
    label_shapes: Optional[list[Any]]
    compression: Any
    floatx: str


def metrics_of(serialized: Any) -> Any:
    """Returns the metrics from the result of estimator._serialized()."""

    def one(metric: Any) -> Any:
        return keras.metrics.deserialize(metric) if isinstance(metric, dict) else metric

    return [[one(m) for m in metric] if isinstance(metric, list) else one(metric) for metric in serialized]


def train(work: Any, training: Training) -> Any:
    """Runs in each rank. Rank 0 returns (history, the bytes of the model's file), the others None."""
    import maypole.keras as hvd
    hvd.init()
    keras.backend.set_floatx(training.floatx)
    _choose_device(hvd, work.use_gpu)
    keras.utils.set_random_seed((work.seed + hvd.rank()) % 2**32)
    model, callbacks, checkpoint = _compiled(hvd, training)
    wanted, outputs = models.shapes(model.inputs), models.shapes(model.outputs)
    steps, batches = work.train_batches(hvd.rank(), hvd.size())
    val_steps, val_batches = work.val_batches(hvd.rank(), hvd.size())

    def endless(of_epoch: Any) -> Any:
        return _endless(of_epoch, work, wanted, outputs, training.label_shapes)

    with work.store.get_local_output_dir_fn(work.run_id)() as directory:
        path = os.path.join(directory, work.store.get_checkpoint_filename() + models.SUFFIX)
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(), *callbacks
        ]
        if hvd.rank() == 0:
            if checkpoint is None:
                checkpoint = keras.callbacks.ModelCheckpoint(path)
            checkpoint.filepath = path
            callbacks += [checkpoint, _Report(work, directory)]
        fitted = model.fit(endless(batches),
                           steps_per_epoch=steps,
                           epochs=work.epochs,
                           callbacks=callbacks,
                           validation_data=endless(val_batches) if val_steps else None,
                           validation_steps=val_steps or None,
                           verbose=2 if work.verbose and hvd.rank() == 0 else 0)
        if hvd.rank() != 0:
            return None
        with open(path, "rb") as f:
            return {name: [float(v) for v in values] for name, values in fitted.history.items()}, f.read()


def _compiled(hvd: Any, training: Training) -> Any:
    """Returns (model with a distributed optimizer, the user's callbacks, the checkpoint callback)."""
    loss, loss_weights, metrics, callbacks, checkpoint = objects.loads(training.compile)
    more = {} if training.compression is None else {"compression": training.compression}
    if training.is_checkpoint:
        model = models.from_bytes(training.model, training.custom_objects, True)
    else:
        model = models.from_bytes(training.model, training.custom_objects, training.optimizer is None or loss is None)
    optimizer = model.optimizer if training.is_checkpoint or training.optimizer is None else None
    if optimizer is None:
        optimizer = (keras.optimizers.get if isinstance(training.optimizer, str) else keras.optimizers.deserialize)(
            training.optimizer)
    if training.rate is not None:
        optimizer.learning_rate = training.rate * hvd.size()
    optimizer = hvd.DistributedOptimizer(optimizer, **more)
    if loss is None:
        model.optimizer = optimizer
    else:
        model.compile(optimizer=optimizer, loss=loss, loss_weights=loss_weights, metrics=metrics_of(metrics))
    return model, callbacks, checkpoint


def _endless(of_epoch: Any, work: Any, wanted: Any, outputs: Any, label_shapes: Any) -> Iterator[Any]:
    epoch = 0
    while True:
        for batch in of_epoch(epoch):
            values = [
                models.inputs([batch[name] for name in work.feature_cols], wanted),
                models.labels([batch[name] for name in work.label_cols], outputs, label_shapes)
            ]
            if work.sample_weight_col:
                values.append(batch[work.sample_weight_col].astype(keras.backend.floatx()))
            yield tuple(values)
        epoch += 1


class _Report(keras.callbacks.Callback):
    """Writes each epoch's checkpoint and history to the store, on rank 0."""

    def __init__(self, work: Any, directory: str):
        super().__init__()
        self._work, self._directory = work, directory
        self._history: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called after the checkpoint was written."""
        self._history.append({"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}})
        if self._work.store.saving_runs():
            logs_directory = os.path.join(self._directory, self._work.store.get_logs_subdir())
            os.makedirs(logs_directory, exist_ok=True)
            with open(os.path.join(logs_directory, "history.json"), "w", encoding="utf-8") as f:
                json.dump(self._history, f)
            self._work.store.sync_fn(self._work.run_id)(self._directory)


def _choose_device(hvd: Any, use_gpu: bool) -> None:
    from maypole.spark.task import get_available_devices
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf
        gpus = tf.config.list_physical_devices("GPU")
        assigned = get_available_devices()
        number = int(assigned[0]) if assigned else hvd.local_rank()
        tf.config.set_visible_devices([gpus[number % len(gpus)]] if gpus and use_gpu else [], "GPU")
    elif backend == "torch":
        import torch
        if torch.cuda.is_available() and use_gpu:
            assigned = get_available_devices()
            torch.cuda.set_device(int(assigned[0]) if assigned else hvd.local_rank() % torch.cuda.device_count())
