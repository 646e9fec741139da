"""Shared by the tests of maypolerun with the real daemons."""
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
PYTHON = "/usr/bin/python3"

# init() needs no framework.
MEET = """
from maypole import _native
from maypole.common import basics, operations
basics.init()
operations.submit(_native.BARRIER, _native.UINT8, 0, 0, (), 1.0, 1.0, None,
                  0, 0).wait()
print("met", basics.size())
"""


class RealJobTestCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mp", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def start(self, *args, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAYPOLE_") and k != "XDG_RUNTIME_DIR"}
        dirs = [os.path.join(ROOT, d) for d in ("coordinator", "worker")]
        env.update(PATH=os.pathsep.join(dirs + ["/usr/bin", "/bin"]), TMPDIR=self.dir,
                   PYTHONPATH=os.path.join(ROOT, "client/python"), PYTHONDONTWRITEBYTECODE="1",
                   MAYPOLE_LIBRARY=os.path.join(ROOT, "client/libmaypole.so"))
        env.update(variables)
        return subprocess.Popen([os.path.join(ROOT, "client/launcher/maypolerun"), *args], env=env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @staticmethod
    def command_line(pid):
        with open("/proc/%d/cmdline" % pid) as f:
            return f.read()

    def processes(self, program):
        """The pids of a daemon's program in jobs of this test."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid) as command, open("/proc/%s/environ" % pid) as variables:
                    if command.read().split("\0")[0].endswith(program) and "TMPDIR=%s\0" % self.dir in variables.read():
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def run_job(self, *args, **variables):
        job = self.start(*args, **variables)
        out, err = job.communicate(timeout=120)
        return job.returncode, out, err
