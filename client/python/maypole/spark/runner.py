"""maypole.spark.run() and run_elastic(), which check Horovod's parameters."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Optional

from maypole.spark import requirements
from maypole.spark.job import Settings

NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


def run(
        fn: Any,
        args: Any = (),
        kwargs: Any = NO_KWARGS,
        num_proc: Optional[int] = None,
        start_timeout: Optional[int] = None,
        use_mpi: Any = None,
        use_gloo: Any = None,
        extra_mpi_args: Any = None,
        env: Optional[dict[str, str]] = None,
        stdout: Any = None,
        stderr: Any = None,
        verbose: int = 1,
        nics: Any = None,
        prefix_output_with_timestamp: bool = False,
        executable: Optional[str] = None) -> list[Any]:
    """Runs fn(*args, **kwargs) in num_proc ranks, each in a Spark task; returns their results by rank.

    The active SparkContext runs the tasks, all at the same time (a barrier stage). fn calls init() itself.

    Args:
        fn: what each rank runs.
        args: the function's positional arguments.
        kwargs: the function's keyword arguments.
        num_proc: number of ranks; by default spark.default.parallelism.
        start_timeout: seconds until all tasks must run; by default HOROVOD_SPARK_START_TIMEOUT, else 600.
        use_mpi: accepted for compatibility, without effect.
        use_gloo: accepted for compatibility, without effect.
        extra_mpi_args: accepted for compatibility, without effect.
        env: variables for the ranks, besides those of the executors and the driver's MAYPOLE_* and HOROVOD_*
            settings.
        stdout: a file for the ranks' output, prefixed with their numbers; by default sys.stdout.
        stderr: likewise, by default sys.stderr.
        verbose: 0: no lines of Maypole's own.
        nics: interfaces of the driver's machine in whose network the job runs.
        prefix_output_with_timestamp: put the time before each line.
        executable: Python of the ranks; by default that of the Spark tasks.

    Raises:
        RankError: a rank failed; it has the rank's number, host and traceback.
        TimeoutError: the job cannot start in time; the text says how many slots there are.
        RuntimeError: likewise, or the Spark job failed.
        TypeError: the call cannot be pickled.
    """
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other")
    context = requirements.active_context()
    from maypole.spark.fixed import FixedJob
    settings = _settings(fn, args, kwargs, start_timeout, env, stdout, stderr, verbose, nics,
                         prefix_output_with_timestamp, executable)
    with FixedJob(context, settings, _count("num_proc", num_proc, context.defaultParallelism)) as job:
        return job.run()


def run_elastic(
        fn: Any,
        args: Any = (),
        kwargs: Any = NO_KWARGS,
        num_proc: Optional[int] = None,
        min_num_proc: Optional[int] = None,
        max_num_proc: Optional[int] = None,
        start_timeout: Optional[int] = None,
        elastic_timeout: Optional[int] = None,
        reset_limit: Optional[int] = None,
        env: Optional[dict[str, str]] = None,
        stdout: Any = None,
        stderr: Any = None,
        verbose: int = 1,
        nics: Any = None,
        prefix_output_with_timestamp: bool = False,
        min_np: Optional[int] = None,
        max_np: Optional[int] = None,
        executable: Optional[str] = None) -> list[Any]:
    """run() with processes that come and go: fn uses maypole.torch.elastic or the like (docs/elastic.md).

    Args:
        fn: what each rank runs.
        args: the function's positional arguments.
        kwargs: the function's keyword arguments.
        num_proc: how many tasks must run before the job starts.
        min_num_proc: limits of the number of ranks; by default num_proc.
        max_num_proc: limits of the number of ranks; by default num_proc.
        start_timeout: seconds until all must run.
        elastic_timeout: how many seconds there may be fewer processes than min_num_proc; by
            default HOROVOD_ELASTIC_TIMEOUT, else 600.
        reset_limit: how often, in total, processes may fail, tasks may be lost, or tasks may come after the start.
        env: variables for the ranks.
        stdout: a file for what the ranks print; None: sys.stdout.
        stderr: a file for what the ranks print to stderr; None: sys.stderr.
        verbose: 0: no lines of Maypole's own.
        nics: interfaces of the network that the job uses.
        prefix_output_with_timestamp: put the time before each line.
        min_np: older name of min_num_proc.
        max_np: older name of max_num_proc.
        executable: Python of the ranks.

    Returns:
        The results of the processes that were there at the end, by rank. A process that fails or is killed,
        with its Spark task or alone, is replaced; the others continue from their last commit.
    """
    context = requirements.active_context()
    from maypole.spark.elastic import ElasticJob
    least, most = _newer("min_num_proc", min_num_proc, min_np), _newer("max_num_proc", max_num_proc, max_np)
    start = _count("num_proc", num_proc, context.defaultParallelism)
    least, most = _count("min_num_proc", least, min(start, most or start)), _count("max_num_proc", most,
                                                                                   max(start, least or 0))
    if not least <= start <= most:
        raise ValueError(
            f"min_num_proc={least}, num_proc={start}, max_num_proc={most}: expected them in ascending order")
    if elastic_timeout is None:
        elastic_timeout = _seconds("HOROVOD_ELASTIC_TIMEOUT")
    settings = _settings(fn, args, kwargs, start_timeout, env, stdout, stderr, verbose, nics,
                         prefix_output_with_timestamp, executable)
    reset_limit = None if reset_limit is None else _count("reset_limit", reset_limit, least=0)
    with ElasticJob(context, settings, start, least, most, reset_limit, _count("elastic_timeout",
                                                                               elastic_timeout)) as job:
        return job.run()


def _newer(name: str, value: Optional[int], older: Optional[int]) -> Optional[int]:
    if value is not None and older is not None and value != older:
        raise ValueError(f"{name}={value} and its older name disagree ({older})")
    return older if value is None else value


def _seconds(variable: str) -> int:
    text = os.environ.get(variable, "600")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{variable}={text!r}: expected a number of seconds")
    return int(text)


def _count(name: str, value: Optional[int], default: Optional[int] = None, least: int = 1) -> int:
    value = default if value is None else value
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: expected a number, {least} or larger")
    return value


def _settings(fn: Any, args: Any, kwargs: Any, start_timeout: Optional[int], env: Optional[dict[str, str]], stdout: Any,
              stderr: Any, verbose: int, nics: Any, timestamps: bool, executable: Optional[str]) -> Settings:
    if start_timeout is None:
        start_timeout = _seconds("HOROVOD_SPARK_START_TIMEOUT")
    wrong = [name for name, value in (env or {}).items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong:
        raise TypeError(f"env: names and values must be text; these are not: {wrong}")
    nics = [nics] if isinstance(nics, str) else sorted(nics or ())
    return Settings(fn, args, kwargs, _count("start_timeout", start_timeout), env, stdout, stderr, verbose, nics,
                    timestamps, executable)
