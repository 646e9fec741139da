"""play(): one recipe as an elastic job of its own, in which a rank dies.

On one node, maypolerun starts the ranks and replaces those that die. On several, this process does, beside the daemons.

Thread contract: any thread.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import crew
import daemons
import harness

_PLAYER = os.path.join(os.path.dirname(crew.PLAYER), "elastic_player.py")
_SECONDS = 120


def play(recipe, nodes, each, mutant=None):
    """The ends of the processes that have come to an end, by number; {0: None}: the job hangs or has failed.

    Beside it the sizes of the job in the steps that count, for the reference; [] if there are none.
    """
    directory = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
    try:
        return _play(recipe, nodes, each, mutant, directory)
    finally:
        shutil.rmtree(directory)


def _play(recipe, nodes, each, mutant, directory):
    env = {"RECIPE": json.dumps(recipe.differences()), "RECIPES_DIR": directory, "TMPDIR": directory,
           "RECIPES_SIZE": str(nodes * each)}
    if mutant is not None:
        env["RECIPES_MUTANT"] = mutant
    run = _on_one_node if nodes == 1 else _on_several
    with open(os.path.join(directory, "log"), "w+", errors="replace") as log:
        status = run(env, nodes, each, log)
        ends = []
        for path in sorted(glob.glob(os.path.join(directory, "end.*[0-9]"))):
            with open(path, encoding="utf-8") as f:
                ends.append(json.load(f))
        failed = any(end["error"] for end in ends)
        # Errors are for judge(), also those that come before anybody would have died.
        if not ends or not failed and (status != 0 or not os.path.exists(os.path.join(directory, "died"))):
            log.seek(0)
            sys.stderr.write(f"status {status}, {len(ends)} ends; the job's output: {log.read()[-3000:]}\n")
            return {0: None}, []
    label = next((label for end in ends for label, *_ in end["moments"]), "")
    return dict(enumerate(ends)), [int(n) for n in re.findall(r"\d+", label)]


def _start(command, env, log):
    return subprocess.Popen(command, env=crew.environment(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _on_one_node(env, _, each, log):
    """The job's exit status; None: it has not ended."""
    process = _start([crew.program("maypolerun"), "-np", str(each), "--min-np", "1", "--blacklist-cooldown-range", "1", "1",
                      "--", harness.PYTHON, _PLAYER], env, log)
    try:
        return process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        harness.kill_tree(process)


class _Daemons(daemons.Daemons):
    def daemon(self, program, flags, prefix=()):
        return super().daemon(crew.program(os.path.basename(program)), flags, prefix)


def _on_several(env, nodes, each, log):
    """As _on_one_node(): 0 if all but the one that dies end well."""
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(_Daemons(nodes, coordinator_flags=["--elastic_settle=200ms"]))

        def start(node):
            process = _start([harness.PYTHON, _PLAYER], dict(
                env, MAYPOLE_ELASTIC="1", MAYPOLE_MIN_SIZE="1", MAYPOLE_AGENT=job.sockets[node], MAYPOLE_JOB="recipe",
                MAYPOLE_TOKEN="of this job", MAYPOLE_START_TIMEOUT="60"), log)
            stack.callback(harness.kill_tree, process)
            return process

        running = {start(n // each): n // each for n in range(nodes * each)}
        deadline = time.monotonic() + _SECONDS
        while running and time.monotonic() < deadline:
            ended = next((p for p in running if p.poll() is not None), None)
            if ended is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    next(iter(running)).wait(0.1)
                continue
            node = running.pop(ended)
            if ended.returncode < 0 and running:
                running[start(node)] = node
            elif ended.returncode != 0:
                return ended.returncode
        return None if running else 0
