"""`maypole-node-ranks COMMAND`: starts a node's ranks, where the cluster starts one process per node of the job.

A pod of a Kubernetes Job, a task of LSF's blaunch or of a cluster without a launcher runs it with these variables,
and it runs COMMAND once per rank with the ranks' own (docs/design.md, section 12):

    MAYPOLE_CROSS_RANK   this node's number
    MAYPOLE_CROSS_SIZE   how many nodes the job has
    MAYPOLE_LOCAL_SIZE   how many ranks this node has (default 1)
    MAYPOLE_RANK         the number of this node's first rank; only if nodes differ in their number of ranks
    MAYPOLE_SIZE         the number of all ranks; likewise

All other variables, MAYPOLE_JOB, MAYPOLE_TOKEN and MAYPOLE_AGENT among them, reach the ranks as they are.
It ends with status 0 when all ranks have. If one ends otherwise, the others have 5 s to report what they know of it,
then it ends them, and its status is that of the first (128 + N if signal N has ended it). SIGINT is passed to the
ranks, which have 5 s to end; SIGTERM, too, after which they have --stop-timeout, for a checkpoint say. SIGUSR1 and
SIGUSR2 are passed to the ranks, and nothing else happens.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple, Optional

_GRACE_SECONDS = 5.0
_STOP_SECONDS = 30.0


class Place(NamedTuple):
    """A node's place in its job: nodes, its ranks, all ranks."""

    cross_rank: int
    cross_size: int
    local_size: int
    first_rank: int
    size: int


def place(env: Mapping[str, str]) -> Place:
    """Reads the variables above. Raises ValueError with one line that names the wrong one."""
    cross_size = _number(env, "MAYPOLE_CROSS_SIZE", 1)
    cross_rank = _number(env, "MAYPOLE_CROSS_RANK", 0)
    local_size = _number(env, "MAYPOLE_LOCAL_SIZE", 1, default=1)
    if cross_rank >= cross_size:
        raise ValueError(f"MAYPOLE_CROSS_RANK={cross_rank} does not fit MAYPOLE_CROSS_SIZE={cross_size}")
    if bool(env.get("MAYPOLE_RANK")) != bool(env.get("MAYPOLE_SIZE")):
        raise ValueError("set both MAYPOLE_RANK (of this node's first rank) and MAYPOLE_SIZE, or neither")
    size = _number(env, "MAYPOLE_SIZE", 1, default=cross_size * local_size)
    first_rank = _number(env, "MAYPOLE_RANK", 0, default=cross_rank * local_size)
    if first_rank + local_size > size:
        raise ValueError(f"ranks {first_rank} to {first_rank + local_size - 1} do not fit MAYPOLE_SIZE={size}")
    return Place(cross_rank, cross_size, local_size, first_rank, size)


def _number(env: Mapping[str, str], name: str, least: int, default: Optional[int] = None) -> int:
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not text:
        raise ValueError(f"{name} is not set")
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}='{text}': expected a number, {least} or larger")
    return int(text)


def rank_variables(node: Place, local_rank: int) -> dict[str, str]:
    """The variables of one rank that differ from the node's."""
    values = {"RANK": node.first_rank + local_rank, "SIZE": node.size, "LOCAL_RANK": local_rank,
              "LOCAL_SIZE": node.local_size, "CROSS_RANK": node.cross_rank, "CROSS_SIZE": node.cross_size}
    return {"MAYPOLE_" + name: str(value) for name, value in values.items()}


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # wait() has just reaped it
        pass


class _Ranks:
    """The processes of the ranks, by process id, and the status that the program ends with."""

    def __init__(self, stop_seconds: float) -> None:
        self.status = 0
        self._stop_seconds = stop_seconds
        self._running: dict[int, int] = {}  # process id -> rank
        self._stopping = False
        self._passed_on: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, self._grace_is_over)

    def start(self, node: Place, command: list[str]) -> None:
        for local_rank in range(node.local_size):
            passed_on = len(self._passed_on)
            process = subprocess.Popen(command, env=dict(os.environ, **rank_variables(node, local_rank)))
            process.returncode = 0  # wait() reaps it, not Popen
            missed = self._passed_on[passed_on:]
            self._running[process.pid] = node.first_rank + local_rank
            for number in missed:
                _kill(process.pid, number)
            if self._stopping:  # the signal came before this rank could be told
                _kill(process.pid, signal.SIGTERM)
                break

    def wait(self) -> None:
        """Returns when all ranks have ended."""
        while self._running:
            pid, state = os.waitpid(-1, 0)
            rank = self._running.pop(pid, None)  # as process 1 it also reaps processes of others
            status = os.waitstatus_to_exitcode(state)
            if rank is None or status == 0 or self.status != 0:
                continue
            self.status = status if status > 0 else 128 - status
            signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)
            how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
            print(f"maypole-node-ranks: rank {rank} (pid {pid}) {how}", file=sys.stderr, flush=True)

    def kill(self, number: int) -> None:
        for pid in self._running:
            _kill(pid, number)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._passed_on.append(number)
        self.kill(number)

    def _stop(self, number: int, _frame: object) -> None:
        if self._stopping and number == signal.SIGTERM:  # some schedulers send it several times
            return
        self._stop_within(self._stop_seconds if number == signal.SIGTERM else _GRACE_SECONDS, number)

    def _stop_within(self, seconds: float, number: int) -> None:
        self._stopping = True
        self.status = self.status or 128 + number
        self.kill(number)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))

    def _grace_is_over(self, _number: int, _frame: object) -> None:
        if self._stopping:
            self.kill(signal.SIGKILL)
        else:
            self._stop_within(_GRACE_SECONDS, signal.SIGTERM)


def main(argv: Optional[list[str]] = None) -> int:
    """Starts the ranks and waits for them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="maypole-node-ranks", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--version", action="store_true", help="print the version of Maypole, and end")
    parser.add_argument("--stop-timeout", type=float, default=_STOP_SECONDS, metavar="SECONDS",
                        help="how long ranks may take to end after SIGTERM (%(default)g)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command of each rank")
    args = parser.parse_args(argv)
    if args.version:
        print(_version())
        return 0
    command = args.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        parser.error("give the command of the ranks")
    try:
        node = place(os.environ)
    except ValueError as error:
        print(f"maypole-node-ranks: {error}", file=sys.stderr)
        return 2
    ranks = _Ranks(args.stop_timeout)
    try:
        ranks.start(node, command)
    except OSError as error:
        print(f"maypole-node-ranks: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        ranks.kill(signal.SIGKILL)
        return 127
    ranks.wait()
    return ranks.status


def _version() -> str:
    import maypole
    try:
        return "maypole-node-ranks " + maypole.__version__
    except ImportError:
        return "maypole-node-ranks (libmaypole is missing)"


if __name__ == "__main__":
    sys.exit(main())
