"""tf.data's service."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.tensorflow.data.compute_service")
