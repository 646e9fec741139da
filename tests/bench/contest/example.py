"""The Fashion-MNIST example: Maypole's time per step against DDP's.

The two run one after the other, several times, on one node with two ranks. The
first loss that they print must be the same, because they do the same work.
"""

import math
import os
import re
import shutil
import subprocess
import tempfile
from typing import Dict, List

import harness
from contest.contestants import BENCH, PYTHON
from contest.processes import Group

RANKS = 2
BATCH = 64
COLUMNS = {"maypole": "Maypole", "ddp": "DistributedDataParallel, Gloo"}
_SECONDS = 240
_LOSS_TOLERANCE = 0.02  # sums of gradients are rounded in another order


def measure(tree: str, quick: bool) -> Dict:
    """The raw line: microseconds per step of each run."""
    images, runs = (640, 1) if quick else (20000, 4)
    steps = math.ceil(math.ceil(images / RANKS) / BATCH)
    found: Dict[str, List[float]] = {name: [] for name in COLUMNS}
    losses: Dict[str, float] = {}
    for turn in range(runs):
        order = list(COLUMNS) if turn % 2 == 0 else list(COLUMNS)[::-1]
        for name in order:
            text = _run(name, tree, images)
            rate = float(_field(r"images per second: (\d+)", text))
            found[name].append(float("%.4g" % (1e6 * images / rate / steps)))
            losses[name] = float(_field(r"epoch 1: loss ([0-9.]+)", text))
    if abs(losses["maypole"] - losses["ddp"]) > _LOSS_TOLERANCE:
        raise ValueError(f"the example's losses differ: {losses}")
    return {"images": images, "steps": steps, "losses": losses,
            "us_per_step": found}


def _field(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"the example did not print '{pattern}' but: "
                         + text[-500:])
    return match.group(1)


def _run(name: str, tree: str, images: int) -> str:
    """Runs it; returns its output."""
    directory = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
    group = Group(os.path.join(directory, "log"))
    try:
        env = dict(harness.environment(root=tree), BENCH_STORE=directory,
                   GLOO_SOCKET_IFNAME="lo", WORLD_SIZE=str(RANKS))
        output = os.path.join(directory, "out")
        with open(output, "wb") as out:
            for process in _start(name, tree, group, env, images, out):
                if process.wait(timeout=_SECONDS) != 0:
                    raise ValueError(f"the example ({name}) failed: "
                                     + group.log_tail())
        with open(output, encoding="utf-8") as f:
            return f.read()
    except subprocess.TimeoutExpired as e:
        raise ValueError(f"the example ({name}) did not end in {_SECONDS} s"
                         ) from e
    finally:
        group.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _start(name, tree, group, env, images, out) -> List[subprocess.Popen]:
    options = ["--epochs=1", f"--limit={images}"]
    if name == "maypole":
        script = os.path.join(harness.ROOT, "examples",
                              "pytorch_fashion_mnist.py")
        launcher = os.path.join(tree, "client/launcher/maypolerun")
        return [group.start([launcher, "-np", str(RANKS), "--no-prefix", "--",
                             PYTHON, script, *options], env, stdout=out)]
    script = os.path.join(BENCH, "fashion_mnist_ddp.py")
    return [group.start([PYTHON, script, *options], dict(env, RANK=str(rank)),
                        stdout=out) for rank in range(RANKS)]
