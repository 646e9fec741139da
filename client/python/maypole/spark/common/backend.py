"""Where an estimator trains: in a job on Spark's executors, or wherever your own Backend runs functions."""

from typing import Any, Optional

from maypole.spark import requirements, runner


def default_num_proc() -> int:
    """spark.default.parallelism."""
    return requirements.active_context().defaultParallelism


class Backend:
    """Runs a function in all ranks of a job."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = runner.NO_KWARGS,
            env: Optional[dict[str, str]] = None) -> list[Any]:
        """Returns the results of fn(*args, **kwargs) by rank.

        Args:
            fn: what each rank runs.
            args: the function's positional arguments.
            kwargs: the function's keyword arguments.
            env: variables for the ranks.
        """
        raise NotImplementedError()

    def num_processes(self) -> int:
        """How many ranks run() has."""
        raise NotImplementedError()


class SparkBackend(Backend):
    """maypole.spark.run().

    Args:
        num_proc: the number of ranks; None: spark.default.parallelism.
        env: variables for the ranks.
        **kwargs: other parameters of maypole.spark.run().
    """

    def __init__(self, num_proc: Optional[int] = None, env: Optional[dict[str, str]] = None, **kwargs: Any):
        self._num_proc = num_proc or default_num_proc()
        self._env = env
        self._kwargs = kwargs

    def run(self, fn: Any, args: Any = (), kwargs: Any = runner.NO_KWARGS,
            env: Optional[dict[str, str]] = None) -> list[Any]:
        """Runs fn(*args, **kwargs) in ranks, each in a Spark task; returns the results by rank.

        Args:
            fn: what each rank runs.
            args: the function's positional arguments.
            kwargs: the function's keyword arguments.
            env: variables for the ranks.
        """
        return runner.run(fn,
                          args=args,
                          kwargs=kwargs,
                          num_proc=self._num_proc,
                          env={
                              **(self._env or {}),
                              **(env or {})
                          },
                          **self._kwargs)

    def num_processes(self) -> int:
        """How many ranks run() has."""
        return self._num_proc
