"""Discoveries with the parameters cpus_per_worker and gpus_per_worker."""

from maypole.ray.discovery import RayHostDiscovery, TestDiscovery
