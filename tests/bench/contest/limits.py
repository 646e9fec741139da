"""Limits of the machine and the wire, measured between the turns."""

import json
import os
import subprocess
from typing import List

import harness


class Machine:
    """The program limits.cc, asked over its standard input."""

    def __init__(self, program: str):
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Its CPU time, including that of threads that have ended."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, line: str) -> List[float]:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return [float(w) for w in self._process.stdout.readline().split()]

    def pingpong(self) -> float:
        """Nanoseconds that a flag takes from one core to another."""
        return self._ask("pingpong")[0]

    def memcpy(self) -> float:
        """GB/s of all cores together, all copying at once."""
        return sum(self._ask("memcpy"))


def shape(net, rate: str) -> None:
    """Limits the rate, with a bucket smaller than every measured size."""
    for name, link in zip(net.names, net.links):
        subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", link,
                        "root", "tbf", "rate", rate, "burst", "128kb",
                        "latency", "50ms"], check=True,
                       env=harness.environment())


def iperf3(net, seconds: int) -> float:
    """Bits per second of one TCP connection from node 0 to node 1."""
    server = net.run(1, ["iperf3", "--server", "--one-off", "--forceflush", "--bind",
                         net.ADDRESSES[1]],
                     stdout=subprocess.PIPE, text=True)
    try:
        # It prints a line when it listens.
        harness.wait_until(lambda: "listening" in server.stdout.readline(), 10,
                           "iperf3's server")
        client = net.run(0, ["iperf3", "--client", net.ADDRESSES[1], "--json",
                             "--time", str(seconds)],
                         stdout=subprocess.PIPE, text=True)
        text, _ = client.communicate(timeout=seconds + 20)
        result = json.loads(text)
        if "error" in result:
            raise OSError("iperf3: " + result["error"])
        return result["end"]["sum_received"]["bits_per_second"]
    finally:
        server.terminate()
        server.communicate()
