"""What a rank can ask about its Spark task."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.spark.task")
