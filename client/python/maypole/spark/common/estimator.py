"""fit() and transform(), for models of any framework."""

import time
from typing import Any, NamedTuple, Optional

import numpy

from maypole.spark import requirements

requirements.need("pyspark")
requirements.need("pyarrow")
requirements.need("pandas")  # pyspark.ml.functions needs it

from pyspark.ml import Estimator, Model

from maypole.spark.common import columns, dataset, predictions, util
from maypole.spark.common.backend import Backend, SparkBackend
from maypole.spark.common.params import EstimatorParams, ModelParams
from maypole.spark.common.serialization import Saved


class Work(NamedTuple):
    """What the ranks of a training get besides the model; lengths: shapes of the columns' rows."""

    train: dataset.Data
    validation: Optional[dataset.Data]
    store: Any
    run_id: str
    feature_cols: list[str]
    label_cols: list[str]
    sample_weight_col: Optional[str]
    lengths: dict[str, tuple[int, ...]]
    batch_size: int
    val_batch_size: int
    epochs: int
    train_steps: Optional[int]
    val_steps: Optional[int]
    seed: int
    shuffle: bool
    shuffle_rows: Optional[int]
    cache: bool
    transformation_fn: Any
    use_gpu: bool
    verbose: int

    def train_batches(self, rank: int, size: int) -> Any:
        """Returns (number of steps in an epoch, function from the epoch's number to the batches)."""
        return self._batches(self.train, rank, size, self.batch_size, self.train_steps, self.shuffle)

    def val_batches(self, rank: int, size: int) -> Any:
        """As train_batches(), for validation, in the rows' order; (0, None) without validation."""
        if self.validation is None:
            return 0, None
        return self._batches(self.validation, rank, size, self.val_batch_size, self.val_steps, False)

    def _batches(self, data: dataset.Data, rank: int, size: int, batch_size: int, count: Optional[int],
                 shuffle: bool) -> Any:
        count = count or dataset.steps(data.total, size, batch_size)
        reader = data.of_rank(rank, size, self.cache)
        change = self.transformation_fn() if self.transformation_fn is not None else lambda batch: batch

        def of_epoch(epoch: int) -> Any:
            # Each rank and epoch has a different seed.
            seed = (self.seed * 1000003 + epoch) * 65537 + rank if shuffle else None
            return map(change, reader.batches(batch_size, count, seed, self.shuffle_rows))

        return count, of_epoch

    def checkpoint_path(self, suffix: str = "") -> Optional[str]:
        """Returns the path of the run's checkpoint in the store; None if checkpoints are not kept."""
        directory = self.store.get_checkpoint_path(self.run_id)
        return directory and f"{directory}/{self.store.get_checkpoint_filename()}{suffix}"


class HorovodEstimator(Estimator, EstimatorParams, Saved):
    """Trains a model on a DataFrame: writes it to the store as Parquet, trains in the backend's ranks."""

    _run_prefix = "run"
    _checkpoint_suffix = ""

    def fit(self, df: Any, params: Any = None) -> Any:
        """Returns the trained model, a Transformer. params: overrides parameters, as with pyspark.ml's estimators."""
        return super().fit(df, params)

    def fit_on_parquet(self, params: Any = None) -> Any:
        """As fit(), on the data at store.get_train_data_path() and, if there is any, get_val_data_path()."""
        estimator = self.copy(params) if params else self
        estimator.check()
        store = estimator.getStore()
        validate = store.exists(store.get_val_data_path())
        return estimator._train(None, validate, None)

    def _fit(self, df: Any) -> Any:
        self.check()
        backend = self._backend()
        metadata = columns.of_schema(df.schema, self._names())
        with util.prepare_data(backend.num_processes(),
                               self.getStore(),
                               df,
                               self.getLabelCols(),
                               self.getFeatureCols(),
                               self.getValidation(),
                               self.getSampleWeightCol(),
                               partitions_per_process=self.getPartitionsPerProcess(),
                               seed=self.getRandomSeed()) as index:
            return self._train(index, bool(self.getValidation()), metadata, backend)

    def _names(self) -> list[str]:
        return util.names(self.getFeatureCols(), self.getLabelCols(), self.getSampleWeightCol())

    def _backend(self) -> Backend:
        backend = self.getBackend()
        if backend is None:
            return SparkBackend(self.getNumProc(), verbose=self.getVerbose())
        if self.getNumProc() is not None:
            raise ValueError("backend and num_proc exclude each other")
        return backend

    def _train(self, index: Optional[int], validate: bool, metadata: Any, backend: Optional[Backend] = None) -> Any:
        backend = backend or self._backend()
        work = self._work(index, validate, backend.num_processes())
        if metadata is None:
            metadata = _metadata_of(work)
        metadata = {
            name: column._replace(length=int(numpy.prod(work.lengths[name], dtype=int)))
            for name, column in metadata.items()
        }
        function, args = self._training(work)
        results = backend.run(function, args=args, env=self.getBackendEnv())
        return self._trained(work, results[0], metadata)

    def _work(self, index: Optional[int], validate: bool, size: int) -> Work:
        store = self.getStore()
        names = self._names()
        parts = []
        for path in [store.get_train_data_path(index)] + [store.get_val_data_path(index)] * validate:
            data = dataset.Data(store, dataset.row_groups(store, path), names)
            if data.total < size:
                raise ValueError(f"{path} has {data.total} rows, fewer than the {size} ranks that are to read them")
            parts.append(data)
        buffer = self.getShufflingBufferSize()
        seed = self.getRandomSeed()
        return Work(parts[0], parts[1] if validate else None, store,
                    self.getRunId() or f"{self._run_prefix}_{time.time_ns()}", list(self.getFeatureCols()),
                    list(self.getLabelCols()), self.getSampleWeightCol(), dataset.lengths(parts[0]),
                    self.getBatchSize(),
                    self.getValBatchSize() or self.getBatchSize(), self.getEpochs(), self.getTrainStepsPerEpoch(),
                    self.getValidationStepsPerEpoch(),
                    int.from_bytes(numpy.random.bytes(3), "little") if seed is None else seed,
                    self.getShuffle() and buffer != 0, buffer or None, self.getInMemoryCacheAll(),
                    self.getTransformationFn(), self.getUseGpu(), self.getVerbose())

    def _checkpoint(self, work: Work) -> Optional[bytes]:
        """Returns the checkpoint that an earlier run of this run_id has left; None if there is none."""
        path = work.checkpoint_path(self._checkpoint_suffix)
        if self.getRunId() is None or path is None or not work.store.exists(path):
            return None
        if self.getVerbose():
            print(f"maypole.spark: training continues from {path}")
        return work.store.read(path)

    def _training(self, work: Work) -> Any:
        """Returns (function, arguments) for the ranks."""
        raise NotImplementedError()

    def _trained(self, work: Work, result: Any, metadata: Any) -> Any:
        """Returns the model, from rank 0's result."""
        raise NotImplementedError()


def _metadata_of(work: Work) -> dict[str, columns.Column]:
    """Returns the metadata of Parquet files that Spark has not described to us."""
    import pyarrow.parquet
    with work.store.fs.open_input_file(work.train.groups[0].path) as f:
        schema = pyarrow.parquet.ParquetFile(f).schema_arrow
    spark_types = {
        "bool": "BooleanType",
        "int8": "ByteType",
        "int16": "ShortType",
        "int32": "IntegerType",
        "int64": "LongType",
        "float": "FloatType",
        "double": "DoubleType"
    }
    out = {}
    for name in work.train.names:
        spark_type = spark_types.get(str(schema.field(name).type))
        out[name] = (columns.Column("array", "float64", "ArrayType") if spark_type is None else columns.Column(
            "scalar", columns.SCALARS[spark_type], spark_type))
    return out


class HorovodModel(Model, ModelParams, Saved):
    """A trained model as a Transformer."""

    def transform(self, df: Any, params: Any = None) -> Any:
        """Returns the DataFrame with additional columns of predictions, by default LABEL__output."""
        return super().transform(df, params)

    def _transform(self, df: Any) -> Any:
        metadata = self._get_metadata()
        columns.of_schema(df.schema, self.getFeatureColumns())
        return predictions.add(df, self._predictor(), self.getFeatureColumns(), self.getOutputCols(),
                               [metadata[label] for label in self.getLabelColumns()])

    def _predictor(self) -> Any:
        """Returns a function, without arguments, for the executors; it returns one from arrays to a list of arrays."""
        raise NotImplementedError()
