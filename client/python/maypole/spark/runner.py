"""maypole.spark.run() and run_elastic(): Horovod's parameters, checked."""

import os
from typing import Any, Dict, List, Optional

from maypole.spark import requirements
from maypole.spark.job import Settings


def run(fn: Any, args: Any = (), kwargs: Any = None, num_proc: Optional[int] = None, start_timeout: Optional[int] = None,
        use_mpi: Any = None, use_gloo: Any = None, extra_mpi_args: Any = None, env: Optional[Dict[str, str]] = None,
        stdout: Any = None, stderr: Any = None, verbose: int = 1, nics: Any = None,
        prefix_output_with_timestamp: bool = False, executable: Optional[str] = None) -> List[Any]:
    """Runs fn(*args, **kwargs) in num_proc ranks, each in a Spark task; returns their results by rank.

    The active SparkContext runs the tasks, all at the same time (a barrier stage). fn calls init() itself.

    num_proc: by default spark.default.parallelism. start_timeout: seconds until all tasks must run; by default
    HOROVOD_SPARK_START_TIMEOUT, else 600. env: variables for the ranks, besides those of the executors and the driver's
    MAYPOLE_* and HOROVOD_* settings. stdout, stderr: files for what the ranks print, with their numbers in front; by
    default sys.stdout and sys.stderr. verbose: 0: no lines of Maypole's own. nics: interfaces of the driver's machine in
    whose network the job runs. executable: Python of the ranks; by default that of the Spark tasks. use_mpi, use_gloo,
    extra_mpi_args: for compatibility, without effect.

    Raises RankError if a rank fails, with its number, host and traceback; TimeoutError or RuntimeError that say how many
    slots there are if the job cannot start; TypeError if the call cannot be pickled.
    """
    del extra_mpi_args
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other")
    context = requirements.active_context()
    from maypole.spark.fixed import FixedJob
    settings = _settings(fn, args, kwargs, start_timeout, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp,
                         executable)
    with FixedJob(context, settings, _count("num_proc", num_proc, context.defaultParallelism)) as job:
        return job.run()


def _count(name: str, value: Optional[int], default: Optional[int] = None, least: int = 1) -> int:
    value = default if value is None else value
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: expected a number, {least} or larger")
    return value


def _settings(fn: Any, args: Any, kwargs: Any, start_timeout: Optional[int], env: Optional[Dict[str, str]], stdout: Any,
              stderr: Any, verbose: int, nics: Any, timestamps: bool, executable: Optional[str]) -> Settings:
    if start_timeout is None:
        text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "600")
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"HOROVOD_SPARK_START_TIMEOUT={text!r}: expected a number of seconds")
        start_timeout = int(text)
    wrong = [name for name, value in (env or {}).items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong:
        raise TypeError(f"env: names and values must be text; these are not: {wrong}")
    nics = [nics] if isinstance(nics, str) else sorted(nics or ())
    return Settings(fn, args, kwargs, _count("start_timeout", start_timeout), env, stdout, stderr, verbose, nics, timestamps,
                    executable)
