"""Ranks that do nothing, wait for the last one, or have submitted an operation without waiting.

At each stage a rank signals the test and sleeps in the kernel, or in an
operation, until the test sends SIGUSR1: polling for a file would disturb the
test's measurement.
"""

import signal

import torch

import maypole.torch as hvd
import rank

LARGE, SMALL = 300000, 100


def stage(name):
    rank.touch("%s.%d" % (name, rank.RANK))
    signal.sigwait([signal.SIGUSR1])


def submit(n):
    return hvd.allreduce_async(torch.full((n,), float(hvd.rank())),
                               name="t%d" % n, op=hvd.Sum)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    sums = [float(hvd.synchronize(submit(n))[n - 1]) for n in (LARGE, SMALL)]
    late = hvd.rank() == hvd.size() - 1

    stage("idle")

    # The others wait in synchronize() for the last one.
    if late:
        stage("waiting")
    else:
        rank.touch("waiting.%d" % hvd.rank())
    for n in (LARGE, SMALL):
        sums.append(float(hvd.synchronize(submit(n))[n - 1]))

    # The others' operations are outstanding, and no rank waits.
    handles = [] if late else [submit(n) for n in (LARGE, SMALL)]
    stage("outstanding")
    handles = handles or [submit(n) for n in (LARGE, SMALL)]
    sums += [float(hvd.synchronize(h)[-1]) for h in handles]

    rank.record(sums=sums)
    hvd.shutdown()


if __name__ == "__main__":
    main()
