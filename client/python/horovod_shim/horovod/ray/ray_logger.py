"""log(): from ranks to the callbacks of RayExecutor.run()."""

from maypole.ray.ray_logger import configure, log
