"""Adds columns with a model's predictions to a DataFrame, in the executors."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from maypole.spark.common import columns

_ROWS = 256  # of a batch


def add(df: Any, make_predictor: Any, features: Sequence[str], outputs: Sequence[str],
        labels: Sequence[columns.Column]) -> Any:
    """make_predictor() returns a function from a list of arrays (rows, ...) to a list of arrays, one for each output.

    For a label's column of numbers, predictions have its type, rounded if that is an integer, provided that the
    model returns one number per row; all other predictions are vectors. Columns with the names of outputs are
    replaced.
    """
    from pyspark.sql import Row
    from pyspark.sql.types import StructField, StructType
    kept = [field for field in df.schema.fields if field.name not in outputs]
    scalar = _are_scalar(df, make_predictor, features, outputs, labels)
    fields = [
        StructField(name, _type(label, is_scalar), True) for name, label, is_scalar in zip(outputs, labels, scalar)
    ]
    row_class = Row(*[field.name for field in kept], *outputs)
    names, features, converters = [field.name for field in kept
                                  ], list(features), [_converter(label) for label in labels]

    def predict(rows: Iterator[Any]) -> Iterator[Any]:
        from pyspark.ml.linalg import DenseVector
        predictor = make_predictor()
        for batch in iter(lambda: list(itertools.islice(rows, _ROWS)), []):
            results = _results(predictor, batch, features)
            for i, row in enumerate(batch):
                values = [
                    converter(float(result[i].reshape(-1)[0]))
                    if is_scalar else DenseVector(result[i].reshape(-1).astype(numpy.float64))
                    for result, converter, is_scalar in zip(results, converters, scalar)
                ]
                yield row_class(*[row[name] for name in names], *values)

    return df.sparkSession.createDataFrame(df.rdd.mapPartitions(predict), StructType(kept + fields))


def _are_scalar(df: Any, make_predictor: Any, features: Sequence[str], outputs: Sequence[str],
                labels: Sequence[columns.Column]) -> list[bool]:
    """For each output, whether its predictions are numbers of the label's type. Runs the model on the first row."""
    features = list(features)

    def sizes(rows: Iterator[Any]) -> Iterator[list[int]]:
        batch = list(rows)
        if batch:
            yield [int(result[0].size) for result in _results(make_predictor(), batch, features)]

    found = df.limit(1).rdd.mapPartitions(sizes).collect()
    found = found[0] if found else [1] * len(labels)  # an empty DataFrame
    if not len(found) == len(labels) == len(outputs):
        raise ValueError(
            f"the model has {len(found)} outputs, but there are {len(labels)} label columns and {len(outputs)} "
            "output columns: expected one for each")
    return [label.kind == "scalar" and size == 1 for label, size in zip(labels, found)]


def _results(predictor: Any, batch: list[Any], features: Sequence[str]) -> list[numpy.ndarray]:
    return predictor([columns.of_rows(batch, name) for name in features])


def _type(label: columns.Column, is_scalar: bool) -> Any:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types
    if not is_scalar:
        return VectorUDT()
    return types.DoubleType() if label.spark_type == "DecimalType" else getattr(types, label.spark_type)()


def _converter(label: columns.Column) -> Any:
    if label.dtype.startswith("int"):
        return round
    return (lambda value: value >= 0.5) if label.dtype == "bool" else float
