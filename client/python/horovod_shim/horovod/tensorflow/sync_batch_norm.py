"""SyncBatchNormalization."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.tensorflow.sync_batch_norm")
