"""play(): one recipe as an elastic job of its own, in which a rank dies.

Thread contract: any thread.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import crew
import harness

_PLAYER = os.path.join(os.path.dirname(crew.PLAYER), "elastic_player.py")
_SECONDS = 120


def play(recipe, size):
    """The ends of the processes that have come to an end, by number; {0: None}: the job hangs or has failed.

    Beside it the sizes of the job in the steps that count, for the reference; [] if there are none.
    """
    directory = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
    try:
        return _play(recipe, size, directory)
    finally:
        shutil.rmtree(directory)


def _play(recipe, size, directory):
    env = crew.environment({"RECIPE": json.dumps(recipe.differences()), "RECIPES_DIR": directory, "TMPDIR": directory,
                            "RECIPES_SIZE": str(size)})
    with open(os.path.join(directory, "log"), "w+", errors="replace") as log:
        process = subprocess.Popen(
            [crew.maypolerun(), "-np", str(size), "--min-np", "1", "--blacklist-cooldown-range", "1", "1", "--",
             harness.PYTHON, _PLAYER], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            status = process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            harness.kill_tree(process)
        ends = []
        for path in sorted(glob.glob(os.path.join(directory, "end.*[0-9]"))):
            with open(path, encoding="utf-8") as f:
                ends.append(json.load(f))
        failed = any(end["error"] for end in ends)
        if status != 0 and not failed or not ends or not os.path.exists(os.path.join(directory, "died")):
            log.seek(0)
            sys.stderr.write(f"status {status}, {len(ends)} ends; the job's output: {log.read()[-3000:]}\n")
            return {0: None}, []
    label = next((label for end in ends for label, *_ in end["moments"]), "")
    return dict(enumerate(ends)), [int(n) for n in re.findall(r"\d+", label)]
