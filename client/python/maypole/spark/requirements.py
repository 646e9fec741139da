"""The packages that maypole.spark needs besides Maypole, imported when they are needed."""

import importlib
from typing import Any

_INSTALL = "pip install 'maypole[spark]'"


def need(name: str) -> Any:
    """Returns the module. Raises an ImportError that says what to install if there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # it is installed, but lacks a package itself
        raise ImportError(f"maypole.spark needs {error.name.partition('.')[0]}: {_INSTALL}", name=error.name) from error


def active_context() -> Any:
    """Returns the SparkContext of this process. Raises RuntimeError if there is none."""
    context = need("pyspark").SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("there is no active SparkContext: start a SparkSession first (Spark Connect has none; "
                           "maypole.spark runs in the process of the driver)")
    return context
