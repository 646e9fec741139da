"""The sampler of elastic training."""

from maypole.torch.elastic.sampler import ElasticSampler
