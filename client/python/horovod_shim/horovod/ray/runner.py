"""RayExecutor, and its settings."""

from maypole.ray.runner import MiniSettings, RayExecutor
