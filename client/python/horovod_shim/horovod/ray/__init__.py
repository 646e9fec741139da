"""Jobs on a Ray cluster: maypole.ray under Horovod's name. ray itself is imported when an executor is used."""

from maypole.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
