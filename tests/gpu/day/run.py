"""Runs the phases of a day on a real GPU, each with a limit of its own; day.sh says how it is started.

    run.py [--first | --rehearse=FAKES] [PHASE ...]

A phase is a process. If it crashes, hangs or runs out of time, it ends with all that it has started, and the next phase
begins. FAKES: the directory with fake/libcuda.so.1 and fake_nccl/libnccl.so.2.

Ends with status 1 if a check has failed or a phase has not ended well, with 2 if the arguments are wrong.
"""

import argparse
import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Dict, List, NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE] + [os.path.join(FOLDER, "tests", part) for part in ("testing", "bench", "gpu/programs")]

import harness  # noqa: E402
import results  # noqa: E402
from day import REHEARSAL_FACTOR, Day  # noqa: E402


class Phase(NamedTuple):
    """seconds: its limit. first: its limit with --first; None: left out there. what: for the table. alone: it is run
    only where it is named, and in a rehearsal: together with all others it is too long for one call."""

    name: str
    seconds: float
    first: Optional[float]
    what: str
    alone: bool = False


# The most valuable ones first.
PHASES = [
    Phase("there", 10, 10, "driver, GPU, what it offers, NCCL"),
    Phase("conformance", 20, 20, "the driver does what Maypole relies on"),
    Phase("training", 120, 100, "trainings and values on CUDA tensors"),
    Phase("figures", 110, 60, "rates, latencies, allreduce beside Gloo"),
    Phase("nodes", 40, 25, "NCCL between executors and between ranks"),
    Phase("deaths", 40, 20, "kill -9 of ranks and executors, memory after it"),
    Phase("allocators", 55, None, "torch's allocators, graphs, streams, no memory"),
    Phase("sanitizer", 30, None, "compute-sanitizer on the kernels"),
    Phase("arrays", 30, None, "JAX, CuPy"),
    Phase("mps", 30, None, "figures under MPS"),
    Phase("cores", 55, None, "the CPU path on all cores"),
    Phase("distributed", 240, None, "torch.distributed on CUDA tensors", alone=True),
]
# Of a phase that is out of time: until it is killed.
_GRACE_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the phases of a day on a real GPU.", allow_abbrev=False)
    parser.add_argument("--first", action="store_true", help="the most valuable phases, shorter")
    parser.add_argument("--rehearse", metavar="FAKES", help="without a GPU: on the fake driver and CPU tensors")
    parser.add_argument("--phase", help=argparse.SUPPRESS)  # in this process
    parser.add_argument("--root", help=argparse.SUPPRESS)  # what unpack() has made
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="; ".join(f"{p.name}: {p.what}" for p in PHASES))
    options = parser.parse_args(arguments)
    unknown = set(options.phases) - {phase.name for phase in PHASES}
    if unknown:
        parser.error("no phase %s; there are %s" % (", ".join(unknown), ", ".join(p.name for p in PHASES)))
    return options


def unpack(root: str) -> None:
    """Unpacks the wheel in `root`, with links to its files where harness.py expects a build's."""
    (wheel,) = [name for name in os.listdir(FOLDER) if name.endswith(".whl")]
    site = os.path.join(root, "client", "python")
    with zipfile.ZipFile(os.path.join(FOLDER, wheel)) as archive:
        archive.extractall(site)
    programs = os.path.join(site, "maypole", "bin")
    for name in os.listdir(programs):
        os.chmod(os.path.join(programs, name), 0o755)
    for path in harness.PROGRAMS:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        os.symlink(os.path.join(programs, os.path.basename(path)), os.path.join(root, path))
    libraries = os.path.join(site, "maypole", "lib")
    for name in os.listdir(libraries):
        os.symlink(os.path.join(libraries, name), os.path.join(root, "client", name))
    os.symlink(os.path.join(FOLDER, "tests"), os.path.join(root, "tests"))


def compile_modules(work: str) -> None:
    """Where torch's modules are not compiled and its directory is read-only, each start would compile all of them."""
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(work, "pyc")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.path.join(work, "root", "client", "python")
    with contextlib.suppress(subprocess.TimeoutExpired):  # what is not compiled then costs the phases time
        subprocess.run([sys.executable, "-c", "import maypole.torch"], env=env, stdin=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=60, check=False)  # some phases need no torch


def kill_descendants() -> None:
    """Ends all that phases have started, also what has left their sessions: this process is their reaper."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = harness.descendants(os.getpid())
        for pid in left:
            harness.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        if not left:
            return
        time.sleep(0.05)


def run_phase(phase: Phase, seconds: float, options: argparse.Namespace, root: str, log) -> str:
    """How the phase has ended."""
    argv = [sys.executable, "-B", os.path.abspath(__file__), "--phase=" + phase.name, "--root=" + root,
            "--deadline=%f" % (time.time() + seconds)]
    argv += ["--first"] * options.first + (["--rehearse=" + options.rehearse] if options.rehearse else [])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        harness.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        return "out of time"
    finally:
        kill_descendants()
    if status == 0:
        return "ended"
    return "signal %d" % -status if status < 0 else "status %d" % status


def limits(options: argparse.Namespace) -> Dict[Phase, float]:
    """The phases to run and the seconds that each has."""
    chosen = {}
    for phase in PHASES:
        named = phase.name in options.phases
        left_out = options.first and phase.first is None or phase.alone and not options.rehearse
        seconds = phase.first if options.first and phase.first is not None else phase.seconds
        seconds *= REHEARSAL_FACTOR if options.rehearse else 1
        if named or not options.phases and not left_out:
            chosen[phase] = seconds
    return chosen


def run_all(options: argparse.Namespace) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out = os.path.abspath(os.environ.get("OUT", os.getcwd()))
    os.makedirs(out, exist_ok=True)
    table = results.Table()
    # Short: unix sockets lie below it.
    work = tempfile.mkdtemp(prefix="mpd", dir="/tmp")
    os.environ["MAYPOLE_DAY_RESULTS"] = os.path.join(out, "results.jsonl")
    try:
        unpack(os.path.join(work, "root"))
        compile_modules(work)
        with open(os.path.join(out, "day.log"), "ab", buffering=0) as log:
            for phase, seconds in limits(options).items():
                log.write(f"=== {phase.name}: {phase.what}; {seconds:g} s at most\n".encode())
                began, before = time.monotonic(), results.size()
                ended = run_phase(phase, seconds, options, os.path.join(work, "root"), log)
                took = time.monotonic() - began
                results.write(phase=phase.name, check="(whole)", state="passed" if ended == "ended" else "failed",
                              values={"end": ended, "seconds": round(took, 1), "limit": seconds},
                              **results.mark(bool(options.rehearse)))
                row = table.add(phase.name, phase.what, results.read_from(before), took, seconds, ended)
                log.write((row + "\n").encode())
                print(row, flush=True)
    finally:
        kill_descendants()
        shutil.rmtree(work, ignore_errors=True)
    text = table.text(bool(options.rehearse))
    with open(os.path.join(out, "day.log"), "a", encoding="utf-8") as log:
        log.write(text)
    print(text, end="", flush=True)
    return 0 if table.good else 1


def main() -> int:
    options = parse(sys.argv[1:])
    if options.phase is None:
        return run_all(options)
    day = Day(options.phase, FOLDER, options.root, options.deadline, options.first, options.rehearse)
    # A phase that is out of time must end what it has started, as `finally` does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    importlib.import_module("phases." + options.phase).run(day)
    return 0


if __name__ == "__main__":
    sys.exit(main())
