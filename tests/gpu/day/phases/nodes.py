"""Two and three nodes on the one GPU: NCCL between executors and between ranks, beside direct calls of NCCL.

NCCL and Maypole take processes with different NCCL_HOSTID for different machines; sockets on loopback connect the GPU
with itself.
"""

import os
import re
import time

from day import Skip

_SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
_SITES = ("agent", "client")


def _library(day):
    """Of the direct calls: the one that Maypole finds."""
    launcher = os.path.join(day.root, "client", "launcher", "maypolerun")
    found = re.search(r"\[X\] NCCL [\d.]+ \(.*?\): (\S+)", day.run([launcher, "--check-build"], 20).stdout)
    if found is None:
        raise Skip("maypolerun --check-build finds no NCCL")
    return found.group(1)


def run(day):
    library = None
    with day.check("NCCL's library", "noted") as values:
        values["path"] = library = _library(day)
    if library is None:
        return
    sizes, rounds = ("1", 2) if day.rehearsal else ("1,16,64", 10)
    for site in _SITES:
        env = {**_SOCKETS, "MAYPOLE_GPU_SITE": site, "MAYPOLE_NCCL_LIBRARY": library}
        with day.check("allreduce beside NCCL, 2 nodes, " + site, "measured") as values:
            with day.job(2, "nccl_beside.py", [library, sizes, rounds], env=env, nodes=2) as job:
                job.check_ok(45)
                values.update(job.record(0))
            if not values["on_gpu"]:
                raise AssertionError("operations do not run on the GPU")
        if not day.first and site in day.some(_SITES):
            _several(day, site, env)
            _abort(day, site, env)


def _job(day, arguments, env, np=3):
    program = day.program("several.py")
    return day.job(np, "with_host_id.py", [program, *arguments], nodes=np,
                   env={**env, "RANKS_PER_GPU": str(np), "ON_GPU": "1"})


def _several(day, site, env):
    """Process sets connect communicators while others are in use."""
    with day.check("communicators connected during traffic, 3 nodes, " + site) as values:
        with _job(day, [6, 11], env) as job:
            job.check_ok(45)
            records = job.records()
        values["on_gpu"] = [record["on_gpu"] for record in records]
        if any(record["error"] for record in records) or len({record["digest"] for record in records}) != 1:
            raise AssertionError("records: %s" % records)
        if min(values["on_gpu"]) == 0:
            raise AssertionError("operations do not run on the GPU: %s" % values)


def _abort(day, site, env):
    """kill -9 of a rank while its communicators are busy: when the others know, and when they have ended."""
    with day.check("abort of busy communicators, 3 nodes, " + site) as values:
        with _job(day, [1000, 5, "kill", 2, 4], env) as job:
            job.await_file("killed", 45)
            killed = time.time()
            job.wait(20)
            values["ended_after_s"] = round(time.time() - killed, 2)
            for rank in (0, 1):
                text, when = job.record(rank)["error"]
                values["rank %d" % rank] = {"seconds": round(when - killed, 3), "text": text[:200]}
                if "rank 2" not in text or when - killed > 2.0:
                    raise AssertionError("rank %d: after %.2f s: %s" % (rank, when - killed, text))
