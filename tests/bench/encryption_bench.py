#!/usr/bin/python3
"""What encryption between executors costs: allreduces of one size on two nodes, in the clear and encrypted.

  tests/bench/encryption_bench.py --tree=bazel-bin --mib=64 --local-ranks=1 --rounds=15 [--rate=1gbit]

Both jobs are alive at the same time and take turns: each round is one turn of
each job. The nodes are network namespaces, so this needs root. Prints the median
and the best turn of each job, and the median of the rounds' ratios.
"""

import argparse
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "testing"))

# `on`: without TLS to the coordinator, and the same between executors as `require`.
MODES = ("off", "on")


def rank_main(fifo_in, fifo_out, mib):
    """One rank: does a turn for each line that rank 0 gets."""
    import torch  # pylint: disable=import-outside-toplevel

    import maypole.torch as hvd  # pylint: disable=import-outside-toplevel

    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones(mib << 18)
    # Each end waits here until the other one has opened it.
    orders = open(fifo_in, encoding="ascii") if hvd.rank() == 0 else None
    answers = open(fifo_out, "w", encoding="ascii") if hvd.rank() == 0 else None
    while True:
        order = torch.zeros(1)
        if orders is not None and orders.readline():
            order += 1
        if hvd.allreduce(order, op=hvd.Sum, name="order")[0] == 0:
            break
        began = time.monotonic()
        hvd.allreduce_(tensor, op=hvd.Max, name="tensor")
        hvd.barrier()
        if answers is not None:
            answers.write("%.9f\n" % (time.monotonic() - began))
            answers.flush()
    hvd.shutdown()


class Contestant:
    """A job in one mode."""

    def __init__(self, c, net, options, mode, number):
        self.fifos = [c.path("%s.%s" % (mode, kind)) for kind in ("in", "out")]
        for fifo in self.fifos:
            os.mkfifo(fifo)
        secret = "--secret_file=" + c.secret(name="secret." + mode)
        inside = [["ip", "netns", "exec", name] for name in net.names]
        address = c.coordinator("--listen=%s:%d" % (net.ADDRESSES[0], 47200 + number), secret, name="coordinator." + mode,
                                prefix=inside[0])
        flag = "--network_encryption=" + mode
        agents = [c.daemon("agent%d.%s" % (n, mode), "worker/maypole-worker", "--socket=" + c.path("%s%d.sock" % (mode, n)),
                           "--coordinator=" + address, "--node=n%d" % n, "--metrics=", secret, flag,
                           prefix=inside[n])["socket"] for n in (0, 1)]
        size = 2 * options.local_ranks
        self.ranks = [c.start("%s.rank%d" % (mode, r), inside[r // options.local_ranks] + [
            sys.executable, os.path.abspath(__file__), "--rank", *self.fifos, str(options.mib)],
            env=options.environment({
                "MAYPOLE_RANK": str(r), "MAYPOLE_SIZE": str(size), "MAYPOLE_LOCAL_RANK": str(r % options.local_ranks),
                "MAYPOLE_LOCAL_SIZE": str(options.local_ranks), "MAYPOLE_CROSS_RANK": str(r // options.local_ranks),
                "MAYPOLE_CROSS_SIZE": "2", "MAYPOLE_JOB": "job." + mode, "MAYPOLE_TOKEN": "token",
                "MAYPOLE_AGENT": agents[r // options.local_ranks]})) for r in range(size)]
        self.orders = open(self.fifos[0], "w", encoding="ascii")
        self.answers = open(self.fifos[1], encoding="ascii")

    def turn(self):
        self.orders.write("go\n")
        self.orders.flush()
        return float(self.answers.readline())

    def end(self):
        self.orders.close()
        for rank in self.ranks:
            rank.wait(timeout=60)


def main():
    if sys.argv[1:2] == ["--rank"]:
        return rank_main(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default="bazel-bin", help="built programs")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--local-ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rate", help="of each direction of the wire, for tc: 1gbit")
    options = parser.parse_args()

    import cluster  # pylint: disable=import-outside-toplevel
    import harness  # pylint: disable=import-outside-toplevel
    import namespaces  # pylint: disable=import-outside-toplevel

    def environment(extra):
        env = harness.environment(extra, options.tree)
        env["PYTHONPATH"] = os.path.join(os.path.dirname(os.path.dirname(HERE)), "client", "python")
        return env

    options.tree = os.path.abspath(options.tree)
    options.environment = environment
    times = {mode: [] for mode in MODES}
    with namespaces.Namespaces(options.rate) as net, cluster.Cluster(root=options.tree) as c:
        jobs = {mode: Contestant(c, net, options, mode, i) for i, mode in enumerate(MODES)}
        for round_number in range(options.rounds + 2):
            for mode in MODES if round_number % 2 == 0 else reversed(MODES):
                seconds = jobs[mode].turn()
                if round_number >= 2:  # the first ones touch memory and find the schedule
                    times[mode].append(seconds)
        for job in jobs.values():
            job.end()
    for mode in MODES:
        print("%-8s median %7.1f ms, best %7.1f ms" % (mode, 1e3 * statistics.median(times[mode]), 1e3 * min(times[mode])))
    print("ratio: median of %d rounds %.2f, of the best turns %.2f" % (
        options.rounds, statistics.median(b / a for a, b in zip(times["off"], times["on"])),
        min(times["on"]) / min(times["off"])))
    return None


if __name__ == "__main__":
    main()
