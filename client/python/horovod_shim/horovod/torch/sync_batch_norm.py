"""SyncBatchNorm."""

from maypole.torch.sync_batch_norm import SyncBatchNorm
