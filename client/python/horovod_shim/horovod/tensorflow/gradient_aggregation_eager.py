"""Local gradient aggregation in eager mode."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.tensorflow.gradient_aggregation_eager")
