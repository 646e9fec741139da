"""The actor that is a rank."""

from maypole.ray.worker import BaseHorovodWorker
