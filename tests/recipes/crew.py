"""Crews: processes that play one recipe after the other.

    with crew.Crew(nodes=2, each=2) as ranks, crew.Lone() as lone:
        ends = ranks.play(recipe)          # by rank
        end = lone.play(recipe, [0, 1])    # its reference for these ranks

A crew is one job of maypolerun. After a program that ended with an error its ranks leave the job and join it again;
after one in which a rank hung or died, the next program starts another job.

Thread contract: one thread.
"""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import harness

PLAYER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "play", "player.py")
START_SECONDS = 120
# Maypole itself ends a job in which every rank waits for another after about 2 s.
HANG_SECONDS = float(os.environ.get("MAYPOLE_TEST_HANG_SECONDS", "40"))


class _Players:
    """Processes connected to a socket, by their rank."""

    def __init__(self, count, start):
        self._dir = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        path = os.path.join(self._dir, "socket")
        self._streams = {}
        self.process = None
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
            listener.listen(count)
            self._log = open(os.path.join(self._dir, "log"), "w+")
            self.process = start(path, self._log)
            for _ in range(count):
                connection = self._accepted(listener)
                stream = connection.makefile("rw")
                self._streams[json.loads(stream.readline())["hello"]] = (connection, stream)
        except BaseException:
            sys.stderr.write(self.log())
            self.close()
            raise
        finally:
            listener.close()

    def _accepted(self, listener):
        listener.settimeout(0.5)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return listener.accept()[0]
            except socket.timeout:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError("the players have not started") from None

    def log(self):
        self._log.flush()
        with open(self._log.name, errors="replace") as f:
            return f.read()[-4000:]

    def ask(self, order, seconds):
        """Their answers by rank; None from those that have not answered in time."""
        answers = dict.fromkeys(sorted(self._streams))
        for _, stream in self._streams.values():
            try:
                stream.write(json.dumps(order) + "\n")
                stream.flush()
            except OSError:  # it has died
                pass
        deadline = time.monotonic() + seconds
        waiting = set(answers)
        while waiting:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._streams[r][0] for r in waiting], [], [], max(left, 0))
            if not ready:
                break
            for rank in [r for r in waiting if self._streams[r][0] in ready]:
                waiting.remove(rank)
                try:
                    line = self._streams[rank][1].readline()
                except OSError:
                    line = ""
                answers[rank] = json.loads(line) if line else None
        return answers

    def close(self):
        for connection, stream in self._streams.values():
            try:
                stream.close()
            except OSError:
                pass
            connection.close()
        if self.process is not None:
            try:
                self.process.wait(timeout=3)  # players end when nobody asks any more
            except subprocess.TimeoutExpired:
                pass
            harness.kill_tree(self.process)
        self._log.close()
        shutil.rmtree(self._dir, ignore_errors=True)


def _environment(path):
    return environment({"RECIPES_SOCKET": path, "TMPDIR": os.path.dirname(path)})


def environment(more):
    """A player's environment."""
    # Outside of a test the programs are those of deploy/env.sh.
    return harness.environment(more) if "TEST_SRCDIR" in os.environ else dict(os.environ, OMP_NUM_THREADS="1", **more)


def program(name):
    """The path of one of harness.PROGRAMS."""
    if "TEST_SRCDIR" in os.environ:
        return os.path.join(harness.ROOT, next(path for path in harness.PROGRAMS if path.endswith("/" + name)))
    return shutil.which(name) or sys.exit(f"{name} is not in PATH: . deploy/env.sh")


class Crew:
    """The ranks of a job of `nodes` nodes with `each` ranks."""

    def __init__(self, nodes, each):
        self.nodes, self.size = nodes, nodes * each
        self._players = None
        self._dirty = False
        self._plays = 0
        self.starts = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self._players is not None:
            self._players.close()
            self._players = None

    def _start(self, path, log):
        return subprocess.Popen(
            [program("maypolerun"), "-np", str(self.size), "--nodes", str(self.nodes), "--",
             harness.PYTHON, PLAYER], env=_environment(path), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def play(self, recipe, mutant=None):
        """The end of each rank; None: it hangs or has died."""
        if self._players is not None and (self._dirty or self._plays % 200 == 199):
            answers = self._players.ask({"reset": True}, HANG_SECONDS)
            if None in answers.values():
                self.stop()
        if self._players is None:
            self._players = _Players(self.size, self._start)
            self.starts += 1
        ends = self._players.ask({"play": recipe.differences(), "mutant": mutant}, HANG_SECONDS)
        self._plays += 1
        self._dirty = any(end is None or end["error"] is not None for end in ends.values())
        if None in ends.values():
            self.stop()
        return ends


class Lone:
    """The process that computes references."""

    def __init__(self):
        self._players = _Players(1, lambda path, log: subprocess.Popen(
            [harness.PYTHON, PLAYER], env=_environment(path), stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._players.close()

    def play(self, recipe, members, sizes=None, nudged=False):
        """sizes: the number of ranks in each step of an elastic job. nudged: weights begin with other last bits."""
        order = {"play": recipe.differences(), "members": members, "sizes": sizes, "nudged": nudged}
        end = self._players.ask(order, HANG_SECONDS)[-1]
        if end is None:
            raise AssertionError(f"no reference of {recipe.differences()}: {self._players.log()}")
        return end
