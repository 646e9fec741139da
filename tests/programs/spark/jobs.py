"""maypole.spark.run() and run_elastic() on a real Spark, one after the other; prints as JSON what each returned.

    jobs.py MASTER DIRECTORY NAME...      NAME: a function here
"""

import io
import os
import signal
import sys
import threading
import time

import sessions

import maypole.spark


def where(number):
    import maypole as hvd
    import numpy
    hvd.init()
    total = hvd.allreduce(numpy.full(3, hvd.rank() + 1.0), op=hvd.Sum, name="x").tolist()
    print("rank", hvd.rank(), "of", hvd.size())
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), total, number, os.environ["FROM_ENV"]]


def java_above(pid):
    """The executor's JVM, above a task's Python worker."""
    while True:
        with open("/proc/%d/stat" % pid) as f:
            pid = int(f.read().rpartition(")")[2].split()[1])
        with open("/proc/%d/cmdline" % pid) as f:
            if "java" in f.read():
                return pid


def fails(how):
    """Rank 1 fails in its tenth step."""
    import maypole as hvd
    import numpy
    hvd.init()
    for step in range(10000):
        hvd.allreduce(numpy.ones(3), op=hvd.Sum, name="x")
        if step == 9 and hvd.rank() == 1:
            if how == "raises":
                raise KeyError("on purpose")
            os.kill({"rank": os.getpid(), "worker": os.getppid()}.get(how) or java_above(os.getppid()), signal.SIGKILL)
        time.sleep(0.02)


def counts(directory, how):
    """An elastic job; rank 1 fails once."""
    import maypole as hvd
    import numpy
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, ranks=[])

    @hvd.elastic.run
    def train(state):
        while state.step < 60 or hvd.size() < 3:  # until there are three again
            state.ranks = state.ranks + [int(hvd.allreduce(numpy.ones(1), op=hvd.Sum, name="x")[0])]
            state.step += 1
            state.commit()
            time.sleep(0.02)
            mark = os.path.join(directory, how)
            if state.step == 20 and hvd.rank() == 1 and not os.path.exists(mark):
                with open(mark, "w"):
                    pass
                os.kill(os.getpid() if how == "rank" else os.getppid(), signal.SIGKILL)
        return [hvd.rank(), hvd.size(), state.step, sorted(set(state.ranks)), os.getpid()]

    return train(state)


def finishes():
    """An elastic job; rank 1 fails after the training."""
    import maypole as hvd
    import numpy
    hvd.init()

    @hvd.elastic.run
    def train(state):
        while state.step < 20 or hvd.size() < 2:
            hvd.allreduce(numpy.ones(1), name="x")
            state.step += 1
            state.commit()

    train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))
    rank = hvd.rank()
    hvd.shutdown()
    if rank == 1:
        os._exit(3)
    time.sleep(100)  # it evaluates


def values(_context, _directory):
    out, err = io.StringIO(), io.StringIO()
    results = maypole.spark.run(where, (7,), num_proc=4, env={"FROM_ENV": "yes"}, stdout=out, stderr=err)
    return [results, sorted(out.getvalue().splitlines())]


def error(how):

    def call(_context, _directory):
        began = time.monotonic()
        try:
            maypole.spark.run(fails, (how,), num_proc=3, stderr=io.StringIO())
        except maypole.spark.RankError as found:
            return [found.rank, str(found), repr(found.__cause__), time.monotonic() - began]

    return call


def too_many(context, _directory):
    try:
        maypole.spark.run(where, (7,), num_proc=9, start_timeout=2)
    except (RuntimeError, TimeoutError) as found:
        return [type(found).__name__, str(found)]


def busy(context, _directory):
    """Another job has all slots but one."""

    def occupy():
        try:
            context.parallelize(range(3), 3).foreach(lambda _: time.sleep(100))
        except Exception:  # it is cancelled below
            pass

    other = threading.Thread(target=occupy, daemon=True)
    other.start()
    while sum(stage.numActiveTasks for stage in map(context.statusTracker().getStageInfo,
                                                    context.statusTracker().getActiveStageIds()) if stage) < 3:
        time.sleep(0.05)
    try:
        maypole.spark.run(where, (7,), num_proc=2, start_timeout=4)
    except TimeoutError as found:
        return str(found)
    finally:
        context.cancelAllJobs()
        other.join()


def elastic(how):

    def call(_context, directory):
        err = io.StringIO()
        results = maypole.spark.run_elastic(counts, (directory, how),
                                            num_proc=3,
                                            min_num_proc=2,
                                            max_num_proc=3,
                                            reset_limit=3,
                                            elastic_timeout=100,
                                            stderr=err)
        return [results, err.getvalue()]

    return call


def after(_context, _directory):
    try:
        maypole.spark.run_elastic(finishes, num_proc=2, max_num_proc=2, stderr=io.StringIO())
    except maypole.spark.RankError as found:
        return str(found)


def shim(_context, _directory):
    import horovod.spark

    def function():
        import horovod.torch as hvd
        import torch
        hvd.init()
        return [hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.__name__, os.environ["HOROVOD_RANK"]]

    return horovod.spark.run(function, num_proc=2)


def sleeps(_context, directory):
    """Until the driver is killed."""

    def function():
        import maypole as hvd
        hvd.init()
        with open(os.path.join(directory, "pid.%d" % os.getpid()), "w"):
            pass
        time.sleep(1000)

    maypole.spark.run(function, num_proc=2)


CALLS = {
    "values": values,
    "too_many": too_many,
    "busy": busy,
    "shim": shim,
    "sleeps": sleeps,
    "after": after,
    **{
        how: error(how) for how in ("raises", "rank", "worker", "executor")
    },
    **{
        "elastic_" + how: elastic(how) for how in ("rank", "worker")
    }
}


def main():
    context = sessions.session(sys.argv[1]).sparkContext
    for name in sys.argv[3:]:
        sessions.say(name, CALLS[name](context, sys.argv[2]))
    context.stop()


if __name__ == "__main__":
    main()
