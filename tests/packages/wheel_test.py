"""The wheel, installed by pip into a fresh environment, trains; the sdist says what it needs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
sys.path.insert(0, os.path.join(ROOT, "tools", "packages"))
import metadata  # noqa: E402
import sdist  # noqa: E402
import wheel  # noqa: E402

PYTHON = "/usr/bin/python3"
BUILT = {"maypolerun": "client/launcher/maypolerun", "maypolectl": "client/ctl/maypolectl",
         "maypole-worker": "worker/maypole-worker", "maypole-coordinator": "coordinator/maypole-coordinator",
         "libmaypole.so": "client/libmaypole.so"}
# Horovod's setup.py reads them; they do no harm.
HOROVOD = {"HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_MPI": "1",
           "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "/nowhere", "HOROVOD_CUDA_HOME": "/nowhere"}
SYSTEM = re.compile(r"/(lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|nss_\w+)|ld-linux-x86-64)\.so\.\d+[.\d]*$")


def files(top):
    return {os.path.relpath(os.path.join(at, name), top) for at, _, names in os.walk(top) for name in names
            if "__pycache__" not in at}


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Not in Bazel's tree, which may lie in a private home.
        cls.dir = tempfile.mkdtemp(prefix="mpw", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        os.chmod(cls.dir, 0o755)
        cls.wheel = os.path.join(cls.dir, wheel.make_wheel({n: os.path.join(ROOT, p) for n, p in BUILT.items()},
                                                           cls.dir, ROOT))
        cls.env = os.path.join(cls.dir, "env")
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", cls.env], check=True)
        cls.before = files(cls.env)
        cls.pip("install", "--no-index", "--no-deps", cls.wheel)
        shutil.copy(os.path.join(ROOT, "tests", "packages", "train.py"), cls.dir)

    @classmethod
    def pip(cls, *args):
        env = dict(HOROVOD, PATH="/usr/bin:/bin", HOME=cls.dir, PIP_CONFIG_FILE="/dev/null")
        subprocess.run([PYTHON, "-m", "pip", "--quiet", "--python", cls.env + "/bin/python"] + list(args), check=True,
                       env=env, cwd=cls.dir)

    def train(self, *prefix, env=None):
        argv = list(prefix) + [self.env + "/bin/maypolerun", "-np", "2", self.env + "/bin/python",
                               self.dir + "/train.py"]
        done = subprocess.run(argv, env=env or {}, cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        size, first, last = re.search(r"LOSSES (\d) (\S+) (\S+)", done.stdout).groups()
        self.assertEqual(size, "2")
        self.assertLess(float(last), float(first) / 2)
        return set(re.findall(r"MAPPED (\S+)", done.stdout))

    def test_trains_with_what_is_in_the_environment_alone(self):
        mapped = self.train()
        at = os.path.realpath(self.env)
        for name in ("maypolerun", "maypole-worker", "maypole-coordinator", "libmaypole.so", "libgrpc.so"):
            self.assertTrue([p for p in mapped if os.path.basename(p).startswith(name)], (name, mapped))
        self.assertEqual({p for p in mapped if not p.startswith(at) and not SYSTEM.search(p)}, set())

    def test_scripts_that_import_horovod(self):
        code = "import horovod.torch as hvd; hvd.init(); print('SIZE', hvd.size(), hvd.__name__)"
        done = subprocess.run([self.env + "/bin/maypolerun", "--horovod-shim", "-np", "2", self.env + "/bin/python", "-c",
                               code], env={}, cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("SIZE 2 horovod.torch"), 2)

    def test_another_user_and_horovods_variables(self):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        self.train(*nobody, env=dict(HOROVOD, PATH="/usr/bin:/bin", HOME="/nonexistent"))

    def test_every_program_starts_and_same_inputs_give_the_same_wheel(self):
        for name in wheel.PROGRAMS:
            done = subprocess.run([os.path.join(self.env, "bin", name), "--version"], env={}, capture_output=True,
                                  text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertIn(metadata.version(ROOT), done.stdout)
        again = tempfile.mkdtemp(dir=self.dir)
        name = wheel.make_wheel({n: os.path.join(ROOT, p) for n, p in BUILT.items()}, again, ROOT)
        with open(self.wheel, "rb") as a, open(os.path.join(again, name), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_uninstall_leaves_nothing(self):
        self.pip("uninstall", "--yes", "maypole")
        left = files(self.env) - self.before
        self.pip("install", "--no-index", "--no-deps", self.wheel)
        self.assertEqual(left, set())

    def test_sdist_without_a_compiler(self):
        out = tempfile.mkdtemp(dir=self.dir)
        path = os.path.join(out, sdist.make_sdist(out, ROOT))
        env = {"PATH": out, "PIP_CONFIG_FILE": "/dev/null", "HOME": out}
        done = subprocess.run([PYTHON, "-m", "pip", "--python", self.env + "/bin/python", "install", "--no-index",
                               path], env=env, cwd=out, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "maypole: cannot build" in line]
        self.assertEqual(len(lines), 1, done.stdout + done.stderr)
        self.assertIn("bazel, g++", lines[0])
        self.assertIn("apt-get install bazel-bootstrap g++", lines[0])


if __name__ == "__main__":
    unittest.main()
