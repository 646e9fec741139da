"""KerasEstimator: trains a Keras model on a DataFrame with maypole.keras; KerasModel: predicts with it."""

from typing import Any

import keras
import numpy

from maypole.common import objects
from maypole.spark import requirements

requirements.need("pyspark")

from pyspark import keyword_only

from maypole.spark.common.estimator import HorovodEstimator, HorovodModel, Work
from maypole.spark.common.params import parameters
from maypole.spark.common.serialization import Saved
from maypole.spark.keras import models, trainer


def _serialized(metrics: Any) -> list[Any]:
    """Replaces objects by their configurations: metrics have variables, which cannot be pickled."""

    def one(metric: Any) -> Any:
        return keras.metrics.serialize(metric) if isinstance(metric, keras.metrics.Metric) else metric

    return [[one(m) for m in metric] if isinstance(metric, (list, tuple)) else one(metric) for metric in metrics]


class _Packed(Saved):
    """Models and optimizers as bytes and configurations."""

    def _pack(self, values: dict[str, Any]) -> dict[str, Any]:
        out = dict(values)
        if out.get("model") is not None:
            out["model"] = models.to_bytes(out["model"])
        if out.get("optimizer") is not None and not isinstance(out["optimizer"], str):
            out["optimizer"] = keras.optimizers.serialize(out["optimizer"])
        if out.get("metrics"):
            out["metrics"] = _serialized(out["metrics"])
        return out

    def _unpack(self, values: dict[str, Any]) -> dict[str, Any]:
        out = dict(values)
        if out.get("model") is not None:
            out["model"] = models.from_bytes(out["model"], out.get("custom_objects"), compiled=True)
        if isinstance(out.get("optimizer"), dict):
            out["optimizer"] = keras.optimizers.deserialize(out["optimizer"])
        if out.get("metrics"):
            out["metrics"] = trainer.metrics_of(out["metrics"])
        return out


@parameters(
    custom_objects=("names of classes and functions that loading the model needs", {}),
    checkpoint_callback=(
        "ModelCheckpoint or BestModelCheckpoint, whose file path is set; by default each epoch's model is "
        "saved", None),
)
class KerasEstimator(_Packed, HorovodEstimator):
    """Its parameters are maypole.spark.common.params.EstimatorParams' and those above.

    The model must have been built. optimizer, loss: not needed if it is compiled. The optimizer's learning rate is
    multiplied by the number of ranks, unless it is a schedule. A label with as many elements as the output gets the
    output's shape, unless label_shapes gives another. callbacks run in all ranks. The trained model is not
    compiled.
    """

    _run_prefix = "keras"
    _checkpoint_suffix = models.SUFFIX

    @keyword_only
    def __init__(self,
                 num_proc: Any = None,
                 data_module: Any = None,
                 model: Any = None,
                 backend: Any = None,
                 store: Any = None,
                 custom_objects: Any = None,
                 optimizer: Any = None,
                 loss: Any = None,
                 loss_weights: Any = None,
                 sample_weight_col: Any = None,
                 gradient_compression: Any = None,
                 metrics: Any = None,
                 feature_cols: Any = None,
                 continuous_cols: Any = None,
                 categorical_cols: Any = None,
                 label_cols: Any = None,
                 validation: Any = None,
                 callbacks: Any = None,
                 batch_size: Any = None,
                 val_batch_size: Any = None,
                 epochs: Any = None,
                 verbose: Any = None,
                 random_seed: Any = None,
                 shuffle_buffer_size: Any = None,
                 shuffle: Any = True,
                 partitions_per_process: Any = None,
                 run_id: Any = None,
                 train_steps_per_epoch: Any = None,
                 validation_steps_per_epoch: Any = None,
                 transformation_fn: Any = None,
                 transformation_edit_fields: Any = None,
                 transformation_removed_fields: Any = None,
                 train_reader_num_workers: Any = None,
                 val_reader_num_workers: Any = None,
                 reader_pool_type: Any = None,
                 label_shapes: Any = None,
                 checkpoint_callback: Any = None,
                 inmemory_cache_all: Any = False,
                 backend_env: Any = None,
                 use_gpu: Any = True,
                 mp_start_method: Any = None):
        super().__init__()
        self.setParams(**self._input_kwargs)

    def check(self) -> None:
        """Raises ValueError if a parameter is missing or wrong."""
        super().check()
        model = self.getModel()
        if not isinstance(model, keras.Model):
            raise ValueError(f"KerasEstimator: model is a {type(model).__name__}, not a keras.Model")
        if not model.built or not model.inputs:
            raise ValueError("KerasEstimator: the model has not been built; give its first layer an input shape")
        if not getattr(model, "compiled", getattr(model, "_is_compiled", False)):
            missing = [name for name in ("optimizer", "loss") if self.getOrDefault(name) is None]
            if missing:
                raise ValueError(f"KerasEstimator: {' and '.join(missing)} must be set, or the model be compiled")
        for name, columns, sides in (("feature_cols", self.getFeatureCols(), model.inputs),
                                     ("label_cols", self.getLabelCols(), model.outputs)):
            if len(columns) != len(sides):
                raise ValueError(f"{name}={columns}: expected {len(sides)}, as many as the model has "
                                 f"{'inputs' if name == 'feature_cols' else 'outputs'}")

    def _training(self, work: Work) -> Any:
        model = self.getModel()
        for name, shape in zip(work.feature_cols, models.shapes(model.inputs)):
            wanted, there = abs(int(numpy.prod(shape[1:], dtype=int))), int(numpy.prod(work.lengths[name], dtype=int))
            if -1 not in shape[1:] and wanted != there:
                raise ValueError(
                    f"column {name!r} has {there} numbers in a row, but the model's input {wanted}: shape {shape}")
        checkpoint = self._checkpoint(work)
        optimizer = self.getOrDefault(self.optimizer)
        # Configurations, because objects have variables.
        if optimizer is not None and not isinstance(optimizer, str):
            optimizer = keras.optimizers.serialize(optimizer)
        training = trainer.Training(
            checkpoint or models.to_bytes(model), checkpoint is not None, self.getCustomObjects(), optimizer,
            models.rate_of(model.optimizer if optimizer is None else optimizer),
            objects.dumps((self.getLoss(), self.getLossWeights(), _serialized(self.getMetrics()), self.getCallbacks(),
                           self.getCheckpointCallback())), self.getLabelShapes(), self.getGradientCompression(),
            keras.backend.floatx())
        return trainer.train, (work, training)

    def _trained(self, work: Work, result: Any, metadata: Any) -> Any:
        history, data = result
        model = models.from_bytes(data, self.getCustomObjects(), compiled=False)
        return self.get_model_class()(history=history,
                                      model=model,
                                      feature_columns=work.feature_cols,
                                      label_columns=work.label_cols,
                                      custom_objects=self.getCustomObjects(),
                                      run_id=work.run_id,
                                      _metadata=metadata,
                                      _floatx=keras.backend.floatx())

    def get_model_class(self) -> Any:
        """The class of the model that fit() returns."""
        return KerasModel


@parameters(
    custom_objects=("as of the estimator", {}),
    _floatx=("Keras' default type in the training", None),
)
class KerasModel(_Packed, HorovodModel):
    """A trained Keras model (getModel()) as a Transformer."""

    @keyword_only
    def __init__(self,
                 history: Any = None,
                 model: Any = None,
                 feature_columns: Any = None,
                 label_columns: Any = None,
                 custom_objects: Any = None,
                 run_id: Any = None,
                 _metadata: Any = None,
                 _floatx: Any = None):
        super().__init__()
        if label_columns:
            self.setOutputCols([name + "__output" for name in label_columns])
        self.setParams(**self._input_kwargs)

    def _predictor(self) -> Any:
        model = self.getModel()
        data, custom_objects, floatx = models.to_bytes(model), self.getCustomObjects(), self.getOrDefault(self._floatx)
        backend = keras.backend.backend()

        def make() -> Any:
            import os
            os.environ.setdefault("KERAS_BACKEND", backend)
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # GPUs are for training
            import keras as framework

            from maypole.spark.keras import models as here
            if floatx:
                framework.backend.set_floatx(floatx)
            loaded = here.from_bytes(data, custom_objects, compiled=False)
            wanted = here.shapes(loaded.inputs)

            def predict(arrays: list[numpy.ndarray]) -> list[numpy.ndarray]:
                outputs = loaded.predict_on_batch(here.inputs(arrays, wanted))
                return [numpy.asarray(o) for o in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]

            return predict

        return make
