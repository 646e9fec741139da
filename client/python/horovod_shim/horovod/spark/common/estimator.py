"""What estimators have in common."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.spark.common.estimator")
