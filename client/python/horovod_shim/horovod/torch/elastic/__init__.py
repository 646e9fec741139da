"""Elastic training."""

from horovod.torch.elastic import sampler, state
from maypole.torch.elastic import (ElasticSampler, ObjectState, State,
                                   TorchState, run)
