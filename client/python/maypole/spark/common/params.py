"""The estimators' and models' parameters: Horovod's, each with a setter and a getter, as in pyspark.ml."""

from typing import Any

from maypole.spark import requirements

requirements.need("pyspark")

from pyspark import keyword_only
from pyspark.ml.param.shared import HasOutputCols, Param, Params, TypeConverters

_T = TypeConverters


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def parameters(**described: Any) -> Any:
    """A class decorator that adds parameters with their setters and getters.

    described: name=(text, default) or (text, default, type converter).
    """

    def add(cls: Any) -> Any:
        defaults = {}
        for name, (text, default, *converter) in described.items():
            setattr(cls, name, Param(Params._dummy(), name, text, *converter))
            defaults[name] = default
            _add_accessors(cls, name, _camel(name))
        for name, called in _CALLED.items():
            if name in described:
                _add_accessors(cls, name, called)
        cls._defaults = {**getattr(cls, "_defaults", {}), **defaults}
        return cls

    return add


# Names of Horovod's accessors that do not follow from the parameter's name.
_CALLED = {
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "inmemory_cache_all": "InMemoryCacheAll",
    "label_columns": "LabelColoumns"
}

# Parameters, and the packages whose readers they configure.
_NOT_SUPPORTED = {
    "transformation_edit_fields": "Petastorm",
    "transformation_removed_fields": "Petastorm",
    "data_module": "data modules such as NVTabular's",
    "continuous_cols": "NVTabular",
    "categorical_cols": "NVTabular"
}


def _add_accessors(cls: Any, name: str, called: str) -> None:
    # A class may have an accessor of its own.
    if f"set{called}" not in vars(cls):
        setattr(cls, f"set{called}", lambda self, value: self._set(**{name: value}))
    if f"get{called}" not in vars(cls):
        setattr(cls, f"get{called}", lambda self: self.getOrDefault(getattr(self, name)))


@parameters(
    num_proc=("number of processes; by default spark.default.parallelism", None),
    backend=("where to train; excludes num_proc", None),
    store=("where intermediate data, checkpoints and logs are kept", None),
    model=("the model to train", None),
    optimizer=("the optimizer", None),
    loss=("the loss, or a list of losses, one for each label", None),
    loss_weights=("the losses' weights; by default equal", None, _T.toListFloat),
    metrics=("metrics", []),
    gradient_compression=("Compression of DistributedOptimizer", None),
    compress_sparse_cols=("without effect: vectors are written dense, and Parquet compresses them", False,
                          _T.toBoolean),
    sample_weight_col=("column with the weights of the samples", None, _T.toString),
    feature_cols=("columns with the model's inputs", None, _T.toListString),
    label_cols=("columns with the labels, one for each output of the model", None, _T.toListString),
    label_shapes=("shapes of the labels of a batch, -1 for its size", None),
    validation=("fraction of the rows, or name of a column that is true or above 0 for rows to validate with", None),
    callbacks=("callbacks", []),
    batch_size=("rows of a batch", 32, _T.toInt),
    val_batch_size=("rows of a batch for validation; by default batch_size", None, _T.toInt),
    epochs=("number of epochs", 1, _T.toInt),
    train_steps_per_epoch=("batches of each rank in an epoch; by default all its rows", None, _T.toInt),
    validation_steps_per_epoch=("the same for validation", None, _T.toInt),
    random_seed=("seed of the framework and of shuffling", None, _T.toInt),
    shuffle=("whether to mix rows in each epoch", True, _T.toBoolean),
    shuffle_buffer_size=("how many rows are mixed at a time; 0: none", None, _T.toInt),
    partitions_per_process=("Parquet files for each process, at most", 10, _T.toInt),
    run_id=("the run's directory in the store; if it has a checkpoint, training continues from it", None, _T.toString),
    transformation_fn=("function that returns a function of a batch (a dict of arrays) to be applied to each batch",
                       None),
    transformation_edit_fields=("not supported", None),
    transformation_removed_fields=("not supported", None),
    data_module=("not supported", None),
    continuous_cols=("not supported", None),
    categorical_cols=("not supported", None),
    backend_env=("variables for the ranks", {}),
    train_reader_num_workers=("without effect: a rank reads in its own process", 2, _T.toInt),
    val_reader_num_workers=("without effect", 2, _T.toInt),
    reader_pool_type=("without effect", "thread"),
    inmemory_cache_all=("whether a rank keeps its rows in memory after the first epoch", False, _T.toBoolean),
    use_gpu=("whether to train on a GPU if there is one", True, _T.toBoolean),
    mp_start_method=("without effect", None, _T.toString),
    verbose=("0: silent; 1: a line for each epoch; 2: more", 1, _T.toInt),
)
class EstimatorParams(Params):
    """The parameters of all estimators."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**self._defaults)

    @keyword_only
    def setParams(self, **kwargs: Any) -> Any:
        """Sets several parameters; None leaves a parameter unchanged."""
        return self._set(**{name: value for name, value in self._input_kwargs.items() if value is not None})

    def check(self) -> None:
        """Raises ValueError for parameters that are missing, wrong or not supported."""
        missing = [name for name in ("model", "store", "feature_cols", "label_cols") if self.getOrDefault(name) is None]
        if missing:
            raise ValueError(f"{type(self).__name__}: {', '.join(missing)} must be set")
        for name, reader in _NOT_SUPPORTED.items():
            if self.getOrDefault(name):
                raise ValueError(f"{name} is not supported: it is for {reader}, which Maypole does not use; "
                                 "transformation_fn may add, change and remove columns of a batch")
        for name in ("batch_size", "epochs", "val_batch_size", "train_steps_per_epoch", "validation_steps_per_epoch",
                     "partitions_per_process"):
            value = self.getOrDefault(name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: expected a number, 1 or larger")
        check_validation(self.getOrDefault("validation"))


def check_validation(value: Any) -> None:
    """Raises ValueError unless the value is None, a fraction or a name."""
    if isinstance(value, str) or value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(
            f"validation={value!r}: expected a fraction of the rows, from 0 to below 1, or the name of a column")


@parameters(
    history=("metrics of the training, by epoch", None),
    model=("the trained model", None),
    feature_columns=("columns with the model's inputs", None),
    label_columns=("columns with the labels", None),
    run_id=("the run that has trained the model", None, _T.toString),
    _metadata=("types and shapes of the columns", None),
)
class ModelParams(HasOutputCols):
    """The parameters of all models."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**self._defaults)

    @keyword_only
    def setParams(self, **kwargs: Any) -> Any:
        """Sets several parameters."""
        return self._set(**self._input_kwargs)

    def setOutputCols(self, value: Any) -> Any:
        """Sets the names of the columns with predictions; by default the labels' names plus __output."""
        return self._set(outputCols=value)

    def _get_metadata(self) -> dict[str, Any]:
        return self.getOrDefault(self._metadata)
