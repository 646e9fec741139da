"""ElasticRayExecutor, and discoveries with the parameters cpus_per_slot and gpus_per_slot."""

from maypole.ray.elastic import ElasticRayExecutor, RayHostDiscovery, TestDiscovery
