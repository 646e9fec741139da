"""TorchEstimator: trains a torch.nn.Module on a DataFrame with maypole.torch; TorchModel: predicts with it."""

import copy
import io
from typing import Any

import numpy
import torch

from maypole.common import objects
from maypole.spark import requirements

requirements.need("pyspark")

from pyspark import keyword_only

from maypole.spark.common.estimator import HorovodEstimator, HorovodModel, Work
from maypole.spark.common.params import parameters
from maypole.spark.torch import trainer


@parameters(
    input_shapes=("shapes of the inputs of a batch, -1 for its size; by default [-1, length of the column]", None),
    loss_constructors=("functions that return the losses, instead of `loss`", None),
    train_minibatch_fn=("function instead of the training step; see maypole.spark.torch.trainer.train_minibatch", None),
)
class TorchEstimator(HorovodEstimator):
    """Its parameters are maypole.spark.common.params.EstimatorParams' and those above.

    feature_cols: one for each argument of the model's forward(). optimizer: of the model's parameters; its learning
    rate is multiplied by the number of ranks, and divided again in the trained model. loss: a function or module of
    (output, label), or a list, one for each output. With sample_weight_col a loss must have an attribute or parameter
    `reduction`. metrics: functions of (output, label), or lists of them, one for each label.
    """

    _run_prefix = "pytorch"

    @keyword_only
    def __init__(self,
                 num_proc: Any = None,
                 data_module: Any = None,
                 model: Any = None,
                 backend: Any = None,
                 store: Any = None,
                 optimizer: Any = None,
                 loss: Any = None,
                 loss_constructors: Any = None,
                 metrics: Any = None,
                 loss_weights: Any = None,
                 sample_weight_col: Any = None,
                 gradient_compression: Any = None,
                 feature_cols: Any = None,
                 continuous_cols: Any = None,
                 categorical_cols: Any = None,
                 input_shapes: Any = None,
                 validation: Any = None,
                 label_cols: Any = None,
                 callbacks: Any = None,
                 batch_size: Any = None,
                 val_batch_size: Any = None,
                 epochs: Any = None,
                 verbose: Any = 1,
                 random_seed: Any = None,
                 shuffle_buffer_size: Any = None,
                 shuffle: Any = True,
                 partitions_per_process: Any = None,
                 run_id: Any = None,
                 train_minibatch_fn: Any = None,
                 train_steps_per_epoch: Any = None,
                 validation_steps_per_epoch: Any = None,
                 transformation_fn: Any = None,
                 transformation_edit_fields: Any = None,
                 transformation_removed_fields: Any = None,
                 train_reader_num_workers: Any = None,
                 val_reader_num_workers: Any = None,
                 reader_pool_type: Any = None,
                 label_shapes: Any = None,
                 inmemory_cache_all: Any = False,
                 use_gpu: Any = True,
                 mp_start_method: Any = None,
                 backend_env: Any = None):
        super().__init__()
        if loss is not None and loss_constructors is not None:
            raise ValueError("loss and loss_constructors exclude each other")
        self.setParams(**self._input_kwargs)

    def check(self) -> None:
        """Raises ValueError if a parameter is missing or wrong."""
        super().check()
        if self.getOrDefault(self.optimizer) is None:
            raise ValueError("TorchEstimator: optimizer must be set")
        if self.getLoss() is None and self.getLossConstructors() is None:
            raise ValueError("TorchEstimator: loss or loss_constructors must be set")
        if self.getCallbacks():
            raise ValueError(
                "TorchEstimator has no callbacks: use train_minibatch_fn, or maypole.spark.run() with a training "
                "loop of your own")

    def getOptimizer(self) -> Any:
        """The optimizer, of the model's parameters."""
        return _optimizer_of(self.getModel(), self.getOrDefault(self.optimizer))

    def _training(self, work: Work) -> Any:
        optimizer = self.getOrDefault(self.optimizer)
        state = {"model": self.getModel().state_dict(), "optimizer": optimizer.state_dict()}
        checkpoint = self._checkpoint(work)
        if checkpoint is not None:
            state = torch.load(io.BytesIO(checkpoint), map_location="cpu")
        shapes = self.getInputShapes() or [
            [-1, int(numpy.prod(work.lengths[name], dtype=int))] for name in work.feature_cols
        ]
        if len(shapes) != len(work.feature_cols):
            raise ValueError(f"input_shapes={shapes}: expected {len(work.feature_cols)}, one for each of feature_cols")
        losses = self.getLossConstructors() or _list(self.getLoss())
        for name, values in (("losses", losses), ("loss_weights", self.getLossWeights())):
            if values is not None and len(values) != len(work.label_cols):
                raise ValueError(
                    f"there are {len(values)} {name}, but {len(work.label_cols)} label_cols: expected one for each")
        training = trainer.Training(objects.dumps(self.getModel()), type(optimizer), _saved(state), losses,
                                    self.getLossConstructors() is not None,
                                    self.getLossWeights() or [1.0 / len(losses)] * len(losses), self.getMetrics(),
                                    shapes, self.getLabelShapes(), self.getGradientCompression(),
                                    self.getTrainMinibatchFn())
        return trainer.train, (work, training)

    def _trained(self, work: Work, result: Any, metadata: Any) -> Any:
        history, data = result
        state = torch.load(io.BytesIO(data), map_location="cpu")
        model = copy.deepcopy(self.getModel()).cpu()
        model.load_state_dict(state["model"])
        model.eval()
        optimizer = _optimizer_of(model, self.getOrDefault(self.optimizer))
        optimizer.load_state_dict(state["optimizer"])
        return self.get_model_class()(history=history,
                                      model=model,
                                      feature_columns=work.feature_cols,
                                      label_columns=work.label_cols,
                                      input_shapes=self.getInputShapes(),
                                      optimizer=optimizer,
                                      run_id=work.run_id,
                                      _metadata=metadata,
                                      loss=self.getLoss(),
                                      loss_constructors=self.getLossConstructors())

    def get_model_class(self) -> Any:
        """The class of the model that fit() returns."""
        return TorchModel


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _saved(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _optimizer_of(model: Any, optimizer: Any) -> Any:
    """Returns an optimizer of the same class and state for the model's parameters."""
    if model is None or optimizer is None:
        return optimizer
    return trainer.make_optimizer(type(optimizer), model, optimizer.state_dict())


@parameters(
    optimizer=("the optimizer with its state after the training", None),
    input_shapes=("as of the estimator", None),
    loss=("as of the estimator", None),
    loss_constructors=("as of the estimator", None),
)
class TorchModel(HorovodModel):
    """A trained torch.nn.Module (getModel()) as a Transformer."""

    @keyword_only
    def __init__(self,
                 history: Any = None,
                 model: Any = None,
                 feature_columns: Any = None,
                 input_shapes: Any = None,
                 label_columns: Any = None,
                 optimizer: Any = None,
                 run_id: Any = None,
                 _metadata: Any = None,
                 loss: Any = None,
                 loss_constructors: Any = None):
        super().__init__()
        if label_columns:
            self.setOutputCols([name + "__output" for name in label_columns])
        self.setParams(**self._input_kwargs)

    def getOptimizer(self) -> Any:
        """The optimizer, of the model's parameters."""
        return _optimizer_of(self.getModel(), self.getOrDefault(self.optimizer))

    def _predictor(self) -> Any:
        data, shapes = objects.dumps(self.getModel()), self.getInputShapes()

        def make() -> Any:
            import torch as framework
            model = objects.loads(data)
            model.eval()

            def predict(inputs: list[numpy.ndarray]) -> list[numpy.ndarray]:
                tensors = trainer.inputs_of(inputs, shapes)
                with framework.no_grad():
                    outputs = model(*tensors)
                return [output.numpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]

            return predict

        return make
