"""Jobs on a Ray cluster: horovod.ray's interface.

    import ray
    from maypole.ray import RayExecutor

    ray.init(address="auto")
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
    executor.start()
    results = executor.run(train, args=[0.01])   # by rank
    executor.shutdown()

The ranks are Ray actors. Each of the job's Ray nodes gets an agent, and one of
them also a coordinator; these end with the job (nodes.py, daemons.py). ray
itself is imported when an executor is used. docs/ray.md is the user's page.
"""

from maypole.ray.discovery import RayHostDiscovery, TestDiscovery
from maypole.ray.elastic import ElasticRayExecutor
from maypole.ray.runner import MiniSettings, RayExecutor
from maypole.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "MiniSettings", "RayExecutor", "RayHostDiscovery",
           "TestDiscovery"]
