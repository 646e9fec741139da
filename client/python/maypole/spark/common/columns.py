"""Columns of a DataFrame as arrays: how Spark writes them to Parquet, and how ranks read them.

A column holds numbers, arrays of numbers, or Vectors of pyspark.ml, which are written as arrays. All rows of a column
have the same length; none may be null.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy

SCALARS = {
    "BooleanType": "bool",
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "DecimalType": "float64"
}


class Column(NamedTuple):
    """What a column holds.

    kind: "scalar", "array" or "vector". dtype: numpy's name of the elements' type. spark_type: the name of its
    class. length: the length of arrays and vectors; None: 1, or not known before the data is read.
    """

    kind: str
    dtype: str
    spark_type: str
    length: Optional[int] = None


def of_schema(schema: Any, names: Sequence[str]) -> dict[str, Column]:
    """Returns the columns. Raises ValueError that lists missing ones, TypeError for a type that cannot be an array."""
    there = {field.name: field.dataType for field in schema.fields}
    missing = [name for name in names if name not in there]
    if missing:
        raise ValueError(f"columns {missing} are not in the DataFrame, which has {sorted(there)}")
    return {name: _of_type(name, there[name]) for name in names}


def _of_type(name: str, data_type: Any) -> Column:
    kind = type(data_type).__name__
    if kind in SCALARS:
        return Column("scalar", SCALARS[kind], kind, 1)
    if kind == "VectorUDT":
        return Column("vector", "float64", kind)
    if kind == "ArrayType" and type(data_type.elementType).__name__ in SCALARS:
        return Column("array", SCALARS[type(data_type.elementType).__name__], kind)
    raise TypeError(f"column {name!r} has the type {data_type.simpleString()}: expected numbers, arrays of numbers or "
                    "vectors; index or assemble it first (pyspark.ml.feature)")


def plain(df: Any, columns: dict[str, Column], more: Sequence[str] = ()) -> Any:
    """Returns the DataFrame with only these columns (and `more`), vectors as arrays and decimals as doubles."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql.functions import col
    out = []
    for name, column in columns.items():
        # Backquotes: a name may contain dots.
        value = col(f"`{name}`")
        if column.kind == "vector":
            value = vector_to_array(value)
        elif column.spark_type == "DecimalType":
            value = value.cast("double")
        out.append(value.alias(name))
    return df.select(*out, *[col(f"`{name}`") for name in more])


def to_array(table: Any, name: str) -> numpy.ndarray:
    """Returns a column of a pyarrow.Table as an array of shape (rows,) or (rows, length).

    Raises ValueError if it has nulls, or rows of different lengths.
    """
    column = table.column(name).combine_chunks()
    if hasattr(column, "chunks"):  # newer pyarrow keeps a ChunkedArray
        column = column.chunk(0) if column.num_chunks == 1 else _concatenated(column)
    if column.null_count:
        raise ValueError(
            f"column {name!r} has {column.null_count} nulls among {len(column)} rows: fill or drop them first "
            "(DataFrame.fillna, dropna)")
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        return column.to_numpy(zero_copy_only=False)
    values = column.flatten()
    if values.null_count:
        raise ValueError(f"column {name!r} has arrays with nulls")
    rows = len(column)
    length = len(values) // rows if rows else 0
    lengths = {len(row) if row is not None else 0 for row in (column[0], column[-1])} if rows else {length}
    if lengths != {length} or rows * length != len(values) or not _uniform(column, length):
        raise ValueError(f"the arrays of column {name!r} have different lengths: all rows must have the same")
    return values.to_numpy(zero_copy_only=False).reshape(rows, length)


def _concatenated(column: Any) -> Any:
    import pyarrow
    return pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)


def _uniform(column: Any, length: int) -> bool:
    if not hasattr(column, "offsets"):
        return True  # a FixedSizeListArray
    return bool((numpy.diff(column.offsets.to_numpy()) == length).all())


def of_rows(rows: list[Any], name: str) -> numpy.ndarray:
    """As to_array(), from pyspark's Rows, for predictions."""
    first = rows[0][name]
    if hasattr(first, "toArray"):  # DenseVector, SparseVector
        return numpy.stack([row[name].toArray() for row in rows])
    return numpy.asarray([row[name] for row in rows])
