#!/usr/bin/env python3
"""What other jobs cost a job of the same coordinator: a round of one job, with 0 and with 255 others.

    coordinator_bench.py --client coordinator_bench [--jobs 1 256] [--times 5] COORDINATOR...

Runs of all coordinators and numbers of jobs are interleaved; prints the median of each, in microseconds.
"""

import argparse
import os
import statistics
import subprocess


def run(coordinator, client, jobs, rounds):
    read, write = os.pipe()
    daemon = subprocess.Popen([coordinator, "--metrics=", "--log_level=off", "--announce_fd=%d" % write],
                              pass_fds=[write])
    try:
        os.close(write)
        with os.fdopen(read) as announced:
            address = announced.read().split()[0].partition("=")[2]
        reply = subprocess.run([client, "--address=" + address, "--jobs=%d" % jobs, "--rounds=%d" % rounds],
                               stdout=subprocess.PIPE, text=True, check=True, timeout=120)
        return float(reply.stdout)
    finally:
        daemon.kill()
        daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coordinators", nargs="+", metavar="COORDINATOR")
    parser.add_argument("--client", required=True)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    seen = {(c, jobs): [] for c in args.coordinators for jobs in args.jobs}
    for _ in range(args.times):
        for (coordinator, jobs), micros in seen.items():
            micros.append(run(coordinator, args.client, jobs, args.rounds))
    for (coordinator, jobs), micros in seen.items():
        print("%s jobs=%d round_us=%.1f of %s" % (coordinator, jobs, statistics.median(micros),
                                                 " ".join("%.1f" % m for m in sorted(micros))))


if __name__ == "__main__":
    main()
