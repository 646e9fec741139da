"""maypolerun with the real daemons: what fakes cannot show."""
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
PYTHON = "/usr/bin/python3"

# No framework is needed to meet the other ranks.
MEET = """
from maypole import _native
from maypole.common import basics, operations
basics.init()
operations.submit(_native.BARRIER, _native.UINT8, 0, 0, (), 1.0, 1.0, None,
                  0, 0).wait()
print("met", basics.size())
"""


class RealJobTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mp", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def run_job(self, *args, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAYPOLE_") and k != "XDG_RUNTIME_DIR"}
        dirs = [os.path.join(ROOT, d) for d in ("coordinator", "worker")]
        env.update(PATH=os.pathsep.join(dirs + ["/usr/bin", "/bin"]), TMPDIR=self.dir,
                   PYTHONPATH=os.path.join(ROOT, "client/python"), PYTHONDONTWRITEBYTECODE="1",
                   MAYPOLE_LIBRARY=os.path.join(ROOT, "client/libmaypole.so"))
        env.update(variables)
        done = subprocess.run([os.path.join(ROOT, "client/launcher/maypolerun"), *args], env=env, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def test_a_private_directory_with_spaces(self):
        directory = os.path.join(self.dir, "my  tmp dir")
        os.mkdir(directory)
        rc, out, err = self.run_job("-np", "3", "--nodes", "2", PYTHON, "-c", MEET, TMPDIR=directory)
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 3" % r for r in range(3)])
        self.assertEqual(os.listdir(directory), [])

    def test_the_start_timeout_names_who_is_missing(self):
        rc, _, err = self.run_job("-np", "3", "--start-timeout", "1", PYTHON, "-c",
                                  "import os, time\nif os.environ['MAYPOLE_RANK'] == '1': time.sleep(100)\n" + MEET)
        self.assertEqual(rc, 1, err)
        for rank in (0, 2):
            self.assertRegex(err, r"(?m)^\[%d\]<stderr>:.*HorovodInternalError: .*rank.* 1\b" % rank)
        self.assertNotIn("see the agent's log", err)


if __name__ == "__main__":
    unittest.main()
