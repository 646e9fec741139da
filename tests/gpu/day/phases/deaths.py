"""kill -9 of a rank or the executor while it reduces on the GPU: named within a second, nothing is left."""

import contextlib
import signal
import time

import harness

_STARTS = 50
_AT_A_TIME = 5
_MOST_LEFT = 64 << 20
_RANK_SECONDS = _EXECUTOR_SECONDS = 1.0
_AGENT = {"MAYPOLE_GPU_SITE": "agent", "MAYPOLE_NCCL_LIBRARY": "none"}
# The time that a start, a kill and an end need, at most.
_SECONDS_OF_A_START = 8


def _survivors(job, ranks, since, word, seconds):
    """{rank: seconds until its error}, which names the dead."""
    found = {}
    for rank in ranks:
        record = job.record(rank)
        if record["error"] is None:
            raise AssertionError("rank %d has seen no error" % rank)
        text, when = record["error"]
        found[str(rank)] = round(when - since, 3)
        if word not in text or when - since > seconds or record["on_gpu"] == 0:
            raise AssertionError("rank %d, after %.2f s and %d operations on the GPU: %s" %
                                 (rank, when - since, record["on_gpu"], text))
    return found


def _kill_a_rank(day, values, env):
    with day.job(4, "train.py", [1000, "on_gpu", "kill", 3, 9], env={**_AGENT, **env}) as job:
        job.await_file("killed", 30)
        killed = time.time()
        job.wait(20)
        values["seconds"] = _survivors(job, range(3), killed, "rank 3", _RANK_SECONDS)


def _kill_in_several(day, number):
    """A rank of each of so many jobs that run at the same time."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(day.job(2, "train.py", [1000, "on_gpu", "kill", 1, 2], env=_AGENT))
                for _ in range(number)]
        for job in jobs:
            job.wait(30)
            if "rank 1" not in job.record(0)["error"][0]:
                raise AssertionError("rank 0: %s" % job.record(0))
    return number


def _kill_the_executor(day, values):
    with day.job(4, "train.py", [1000, "on_gpu", "wait_at", 9], env=_AGENT) as job:
        for rank in range(4):
            job.await_file("rank.%d.waits" % rank, 30)
        job.touch("go")
        time.sleep(0.05)  # in the middle of its reductions
        for pid in job.executors():
            harness.kill(pid, signal.SIGKILL)
        killed = time.time()
        job.wait(20)
        values["seconds"] = _survivors(job, range(4), killed, "executor", _EXECUTOR_SECONDS)


def run(day):
    before = None
    with day.check("free memory before", "noted") as values:
        before = values["bytes"] = day.free_bytes()
    for way in day.some(["descriptor", "ipc"]):
        with day.check("a rank is killed, " + way) as values:
            _kill_a_rank(day, values, {"MAYPOLE_GPU_MEMORY": way})
    with day.check("the executor is killed") as values:
        _kill_the_executor(day, values)
    with day.check("starts and kills") as values:
        values["starts"] = 0
        values["of"] = 1 if day.rehearsal else 5 if day.first else _STARTS
        while values["starts"] < values["of"] and day.seconds_left() > _SECONDS_OF_A_START:
            values["starts"] += _kill_in_several(day, min(_AT_A_TIME, values["of"] - values["starts"]))
    with day.check("free memory after it") as values:
        # A driver frees the memory of processes that have ended, some time later.
        deadline = time.monotonic() + 5
        while day.free_bytes() < before - _MOST_LEFT and time.monotonic() < deadline:
            time.sleep(0.2)
        values["bytes_less"] = before - day.free_bytes()
        if values["bytes_less"] > _MOST_LEFT:
            raise AssertionError("%d bytes are not free again" % values["bytes_less"])
