"""An elastic training that ends in the way its argument says; for finish_test.py.

Each process makes up.PID in MAYPOLE_TEST_DIR when it begins, and prints "trains from STEP" when its function begins, and
"done STEP" at its end.

    late N      rank 1 dies shortly before the end. Rank 0 leaves the job, and evaluates until the process that
                replaces rank 1 has come and ended, or trains; then for N more seconds
    replaced    as late 0, and when rank 0 has left, it kills the coordinator, which maypolerun starts again
    exits       as late, but rank 0 stays in the job until the process that replaces rank 1 has been there for a second,
                and then calls os._exit(0)
    leaves      rank 1 gets SIGTERM; training goes on until another process has taken its place
    fails       rank 1 leaves the job after the training and fails, while rank 0 evaluates
    early       rank 1 returns from its function in step 10, and the others go on
    later       three ranks pretrain, and print "pretrains from STEP", before they train. Rank 2 dies when rank 1 has
                completed the first training and rank 0 has not; the training goes on until a third rank is there again.
                "done STEP" is followed by what the first training returned, a number that differs between processes
"""

import os
import signal
import sys
import time

import numpy as np

import maypole as hvd
from maypole import elastic
from maypole.common.objects import broadcast_object

DIR = os.environ["MAYPOLE_TEST_DIR"]
HOW = sys.argv[1]
STEPS = 40


def once(name):
    try:
        os.close(os.open(os.path.join(DIR, name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def await_another():
    """Until a third process has begun and ended, or has begun to train."""
    while True:
        pids = [name[3:] for name in os.listdir(DIR) if name.startswith("up.")]
        if len(pids) > 2 and (os.path.exists(os.path.join(DIR, "again")) or
                              sum(os.path.exists("/proc/" + pid) for pid in pids) == 1):
            return
        time.sleep(0.05)


def kill_coordinator():
    """A child of maypolerun, like this process."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open("/proc/%s/stat" % pid) as f:
            parent = int(f.read().rpartition(")")[2].split()[1])
        with open("/proc/%s/cmdline" % pid, "rb") as f:
            name = os.path.basename(f.read().split(b"\0")[0])
        if parent == os.getppid() and name == b"maypole-coordinator":
            os.kill(int(pid), signal.SIGKILL)
            return
    raise LookupError("there is no coordinator")


once("up.%d" % os.getpid())
hvd.init()


@elastic.run
def train(state):
    print("trains from", state.step)
    if os.path.exists(os.path.join(DIR, "over")):
        once("again")
    while state.step < STEPS or hvd.size() < {"leaves": 2, "later": 3}.get(HOW, 0):
        hvd.allreduce(np.ones(3), name="step")
        state.step += 1
        if hvd.rank() == 1 and HOW in ("late", "replaced", "exits") and state.step == STEPS - 5 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if hvd.rank() == 1 and HOW == "leaves" and state.step == 10 and once("left"):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)
        state.commit()
        if HOW == "early":
            if hvd.rank() == 1 and state.step == 10:
                return
            time.sleep(0.3)


@elastic.run
def pretrain(state):
    print("pretrains from", state.step)
    while state.step < 10:
        hvd.allreduce(np.ones(3), name="step")
        state.step += 1
        state.commit()
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(3), name="the last")  # ends with the death of rank 2
    if hvd.rank() == 2:
        while not os.path.exists(os.path.join(DIR, "pretrained")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


if HOW == "later":
    first = elastic.ObjectState(broadcast_object, hvd.rank, step=0)
    pid = pretrain(first)
    once("pretrained")
of_job = elastic.ObjectState(broadcast_object, hvd.rank, step=0)
train(of_job)
if HOW == "later":
    print("done", of_job.step, first.step, pid, flush=True)
    sys.exit()
rank = hvd.rank()
if HOW == "exits":
    once("over")
    while len([name for name in os.listdir(DIR) if name.startswith("up.")]) < 3:
        time.sleep(0.05)
    time.sleep(1)
    print("done", of_job.step, flush=True)
    os._exit(0)
hvd.shutdown()
once("over")
if HOW == "replaced":
    kill_coordinator()
if HOW in ("late", "replaced"):
    await_another()
    time.sleep(float(sys.argv[2]))
if HOW == "fails":
    if rank == 1:
        sys.exit(3)
    time.sleep(4)  # longer than the host's cool-down
print("done", of_job.step)
