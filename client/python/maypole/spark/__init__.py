"""Maypole on Spark, with horovod.spark's interface: a job whose ranks are Spark tasks.

    maypole.spark.run(function, args, num_proc=4)      # each rank's result, by rank
    maypole.spark.torch.TorchEstimator(...).fit(df)    # trains a model on a DataFrame

docs/spark.md is the user's page. PySpark is imported when it is needed.
"""

from maypole.runner.errors import RankError
from maypole.spark.runner import run, run_elastic

__all__ = ["RankError", "run", "run_elastic"]
