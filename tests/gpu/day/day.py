"""What a phase of the day works with: the paths of programs, jobs on the GPU, and checks that are recorded at once.

    def run(day):
        with day.check("4 ranks, ipc") as values:        # an exception is a failed check; the phase goes on
            with day.job(4, "torch_train.py", env={...}) as job:
                job.check_ok(60)
                values["losses"] = ...

Thread contract: one thread.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, Dict, Iterator, List, Optional, Sequence

import harness
import results

# The limits of a rehearsal, on few cores beside other work, are so many times longer.
REHEARSAL_FACTOR = 4
# Of the fake GPU.
_FAKE_MEMORY = 512 << 20


class Skip(Exception):
    """Ends a check that cannot be made here; the text is the reason."""


class Day:
    """device: "cuda", or, in a rehearsal, "cpu": of torch's tensors. root: see harness.Job."""

    def __init__(self, phase: str, folder: str, root: str, deadline: float, first: bool, fakes: Optional[str]):
        self.folder, self.root, self.first = folder, root, first
        self.rehearsal = fakes is not None
        self.device = "cpu" if self.rehearsal else "cuda"
        self.programs = os.path.join(folder, "tests", "programs", "torch_distributed")
        self._phase, self._deadline, self._fakes = phase, deadline, fakes
        # What the processes of the fake GPU share; as long as the phase.
        self._state = None if fakes is None else tempfile.TemporaryDirectory(prefix="mpg", dir="/tmp")
        harness.PYTHON = sys.executable

    def seconds_left(self) -> float:
        return self._deadline - time.time()

    def bounded(self, seconds: float) -> float:
        """How long to wait for what should take so long at most."""
        return max(1.0, min(seconds * (REHEARSAL_FACTOR if self.rehearsal else 1), self.seconds_left() - 1))

    # --- Results --------------------------------------------------------------

    def _write(self, check: str, state: str, values: Dict[str, Any]) -> None:
        values = json.loads(self._plain(json.dumps(values)))
        results.write(phase=self._phase, check=check, state=state, values=values, **results.mark(self.rehearsal))
        print("%s: %s %s" % (check, state, values), flush=True)

    def _plain(self, text: str) -> str:
        """Results are kept with the sources: without the paths of the machine that they are from."""
        for path, name in ((self.root, "ROOT"), (self.folder, "FOLDER"), (os.path.dirname(sys.prefix), "PREFIX"),
                           (tempfile.gettempdir(), "TMP")):
            text = text.replace(path + os.sep, name + os.sep)
        return text

    @contextlib.contextmanager
    def check(self, name: str, state: str = "passed") -> Iterator[Dict[str, Any]]:
        """Writes the check with the values that the body has put in. state: "measured" or "noted" of what cannot fail
        by a value."""
        values: Dict[str, Any] = {}
        began = time.monotonic()
        try:
            yield values
        except Skip as reason:
            self._write(name, "skipped", {"reason": str(reason)})
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            self._write(name, "failed", {**values, "reason": str(error)[-1500:]})
        else:
            self._write(name, state, {**values, "took": round(time.monotonic() - began, 2)})

    def skip(self, name: str, reason: str) -> None:
        self._write(name, "skipped", {"reason": reason})

    def some(self, all_: Sequence[Any]) -> List[Any]:
        """All; in a rehearsal, in which they run the same code, the first one."""
        return list(all_[:1] if self.rehearsal else all_)

    # --- Programs -------------------------------------------------------------

    def environment(self, more: Optional[Dict[str, str]] = None) -> Dict[str, str]:
        """More variables than harness.environment() has: this Python's programs are found (and so is its NCCL), and
        those of PATH; in a rehearsal, the fake GPU."""
        paths = [os.path.dirname(sys.executable), harness.environment(root=self.root)["PATH"], os.environ["PATH"]]
        # Small tensors shall run where the check says; phases/figures.py tries the default.
        env = {"PATH": os.pathsep.join(paths), "MAYPOLE_GPU_HOST_BYTES": "0"}
        if self._state is not None:
            env.update({"MAYPOLE_FAKE_CUDA": "memory=%d,state=%s" % (_FAKE_MEMORY, self._state.name),
                        "LD_LIBRARY_PATH": os.path.join(self._fakes, "fake"),
                        "MAYPOLE_NCCL_LIBRARY": os.path.join(self._fakes, "fake_nccl", "libnccl.so.2")})
        env.update(more or {})
        return env

    def program(self, name: str) -> str:
        """The path of a program of the folder `programs` here, of tests/gpu/programs or of self.programs."""
        folders = [os.path.join(self.folder, "tests", "gpu", folder) for folder in ("day/programs", "programs")]
        paths = [os.path.join(folder, name) for folder in folders + [self.programs]]
        return next(path for path in paths if os.path.exists(path))

    def python_path(self) -> str:
        """Where Python programs find their modules."""
        paths = [os.path.join(self.folder, "tests", part) for part in ("testing", "bench", "gpu/programs")]
        return os.pathsep.join([os.path.join(self.root, "client", "python")] + paths)

    def job(self, np: int, program: str, args: Sequence[Any] = (), env: Optional[Dict[str, str]] = None,
            **options: Any) -> "GpuJob":
        """A job of program(); options: as for harness.Job."""
        command = [sys.executable, "-B", self.program(program)] + [str(a) for a in args]
        return GpuJob(self, np, command, env or {}, options)

    def run(self, argv: Sequence[str], seconds: float, env: Optional[Dict[str, str]] = None,
            expect: Optional[int] = 0) -> "subprocess.CompletedProcess[str]":
        """Runs a program to its end; its output goes to the log, too. expect: its status; None: any."""
        done = subprocess.run(argv, env=harness.environment(self.environment(env), self.root), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=self.bounded(seconds))
        print("$ %s\n%s" % (" ".join(argv), done.stdout), flush=True)
        if expect is not None and done.returncode != expect:
            raise RuntimeError("%s ended with status %d: %s" % (argv[0], done.returncode, done.stdout[-1000:]))
        return done

    def free_bytes(self) -> int:
        """Free memory of GPU 0, as another process sees it."""
        code = ("import sys; sys.path.insert(0, %r)\nimport device\nprint(device.Gpu().free_bytes())" %
                os.path.join(self.folder, "tests", "gpu", "programs"))
        env = harness.environment(self.environment(), self.root)
        return int(subprocess.check_output([sys.executable, "-B", "-c", code], env=env, text=True, timeout=30))

    def module(self, name: str) -> bool:
        """Whether the Python here has this module."""
        return subprocess.run([sys.executable, "-c", "import " + name], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=60).returncode == 0


class GpuJob(harness.Job):
    """A harness.Job whose processes share one GPU."""

    def __init__(self, day: Day, np: int, command: List[str], env: Dict[str, str], options: Dict[str, Any]):
        self.day = day
        extra = day.environment({
            "PYTHONPATH": day.python_path(),
            "DAY_DEVICE": day.device,
            **env
        })
        super().__init__(np, command=command, env=extra, root=day.root, **options)

    # Waits are not longer than the phase has.

    def wait(self, seconds: float) -> int:
        return super().wait(self.day.bounded(seconds))

    def await_file(self, name: str, seconds: float = 60) -> str:
        return super().await_file(name, self.day.bounded(seconds))

    def check_ok(self, seconds: float = 60) -> None:
        """Waits for the end; fails with what the job has written."""
        try:
            super().check_ok(seconds)
        except AssertionError as error:
            raise AssertionError("%s; its last lines: %s" % (error, self.stderr()[-800:])) from None
