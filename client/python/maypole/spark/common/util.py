"""prepare_data(): writes a DataFrame as Parquet to a store."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from maypole.spark.common import columns, params

_lock = threading.Lock()
_in_use: set[int] = set()


def _free_index() -> int:
    with _lock:
        index = next(i for i in range(len(_in_use) + 1) if i not in _in_use)
        _in_use.add(index)
        return index


@contextlib.contextmanager
def prepare_data(num_processes: int,
                 store: Any,
                 df: Any,
                 label_columns: Sequence[str],
                 feature_columns: Sequence[str],
                 validation: Any = None,
                 sample_weight_col: Optional[str] = None,
                 compress_sparse: bool = False,
                 partitions_per_process: int = 10,
                 verbose: int = 0,
                 seed: Optional[int] = None) -> Iterator[int]:
    """Writes the columns to store.get_train_data_path(idx) and get_val_data_path(idx); a context that gives idx.

    Two contexts that are open at the same time in one process have different indices; after the context its data may be
    overwritten. compress_sparse, verbose: without effect.
    """
    params.check_validation(validation)
    index = _free_index()
    try:
        write(df, store, index, names(feature_columns, label_columns, sample_weight_col), validation,
              num_processes * partitions_per_process, num_processes, seed)
        yield index
    finally:
        with _lock:
            _in_use.discard(index)


def names(feature_columns: Sequence[str], label_columns: Sequence[str], sample_weight_col: Optional[str]) -> list[str]:
    """The columns that training reads, each once."""
    return list(dict.fromkeys([*feature_columns, *label_columns, *([sample_weight_col] if sample_weight_col else [])]))


def write(df: Any,
          store: Any,
          index: int,
          wanted: Sequence[str],
          validation: Any,
          most_files: int,
          least_files: int,
          seed: Optional[int] = None) -> None:
    """Writes the DataFrame's training data.

    least_files, most_files: limits of the number of files with training data; between them it keeps the
    DataFrame's partitions.
    """
    from pyspark.sql.functions import col
    schema = columns.of_schema(df.schema, wanted)
    if isinstance(validation, str):
        columns.of_schema(df.schema, [validation])
        is_bool = df.schema[validation].dataType.simpleString() == "boolean"
        marked = col(f"`{validation}`") if is_bool else col(f"`{validation}`") > 0
        parts = [df.filter(~marked), df.filter(marked)]
    elif validation:
        parts = df.randomSplit([1.0 - validation, float(validation)], seed)
    else:
        parts = [df]
    for part, path in zip(parts, (store.get_train_data_path(index), store.get_val_data_path(index))):
        data = columns.plain(part, schema)
        there = data.rdd.getNumPartitions()
        wanted_files = min(max(there, least_files), most_files)
        if wanted_files > there:
            data = data.repartition(wanted_files)
        elif wanted_files < there:
            data = data.coalesce(wanted_files)
        data.write.mode("overwrite").parquet(path)
