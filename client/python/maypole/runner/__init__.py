"""Runs a function in each rank of a new job, from Python: maypole.run()."""

from maypole.runner.api import run
from maypole.runner.errors import RankError

__all__ = ["RankError", "run"]
