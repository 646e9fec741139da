"""Environments of Python with Maypole's wheel, as users have them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest.mock

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
sys.path.insert(0, os.path.join(ROOT, "tools", "packages"))
import deb  # noqa: E402
import horovod_wheel  # noqa: E402
import sdist  # noqa: E402
import wheel  # noqa: E402

PYTHON = "/usr/bin/python3"
MOST_BYTES = 20e6  # of a wheel
_BUILT = {"maypolerun": "client/launcher/maypolerun", "maypolectl": "client/ctl/maypolectl",
          "maypole-worker": "worker/maypole-worker", "maypole-coordinator": "coordinator/maypole-coordinator",
          **{name: "client/" + name for name in wheel.libraries(ROOT)}}
_FOR_THE_WHEEL = wheel.binaries(ROOT)
# Horovod's setup.py reads them; they do no harm.
HOROVOD = {"HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_MPI": "1",
           "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "/nowhere", "HOROVOD_CUDA_HOME": "/nowhere"}


def directory():
    """A new one that every user can read; not in Bazel's tree, which may lie in a private home."""
    made = tempfile.mkdtemp(prefix="mpw", dir="/tmp")
    os.chmod(made, 0o755)
    return made


def source_tree():
    """The repository, to which the links of a test that is not in a sandbox lead."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def unpack_sdist(place):
    """Unpacks the sdist of source_tree() in the directory `place`; returns the path of the sources."""
    with tempfile.TemporaryDirectory() as work:
        name = sdist.make_sdist(work, source_tree())
        shutil.unpack_archive(os.path.join(work, name), place)
    return os.path.join(place, name[:-len(".tar.gz")])


def make_wheel(out):
    """Makes the wheel of what Bazel has built; returns its path."""
    return os.path.join(out, wheel.make_wheel({n: os.path.join(ROOT, p) for n, p in _FOR_THE_WHEEL.items()}, out, ROOT))


def make_horovod_wheel(out):
    return os.path.join(out, horovod_wheel.make_wheel(out, ROOT))


def make_debs(out, when, **how):
    """Makes the Debian packages of what Bazel has built; returns {package: path}.

    when: the time of their files. how: as for deb.make_debs().
    """
    with unittest.mock.patch.dict(os.environ, SOURCE_DATE_EPOCH=str(when)):
        names = deb.make_debs({n: os.path.join(ROOT, p) for n, p in _BUILT.items()}, out, ROOT, **how)
    return {name.partition("_")[0]: os.path.join(out, name) for name in names}


class Environment:
    """A venv, made at `path` if it is not there: with the system's packages."""

    def __init__(self, path):
        self.path = path
        if not os.path.exists(path):
            subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", path], check=True)

    def pip(self, *args):
        home = os.path.dirname(self.path)
        env = dict(HOROVOD, PATH="/usr/bin:/bin", HOME=home, PIP_CONFIG_FILE="/dev/null")
        subprocess.run([PYTHON, "-m", "pip", "--quiet", "--python", self.path + "/bin/python"] + list(args), check=True,
                       env=env, cwd=home)

    def run(self, *argv, prefix=(), env=None, status=0):
        """Runs a program of the environment with no variable of this process; returns what subprocess.run does."""
        argv = list(prefix) + [os.path.join(self.path, argv[0])] + list(argv[1:])
        done = subprocess.run(argv, env=env or {}, cwd="/", capture_output=True, text=True, timeout=300)
        if done.returncode != status:
            raise AssertionError("%s: status %d, expected %d\n%s%s" % (argv, done.returncode, status, done.stdout, done.stderr))
        return done

    def check_training(self, test, *prefix, env=None):
        """Trains with two ranks (train.py); returns what the job's processes have mapped."""
        script = os.path.join(os.path.dirname(self.path), "train.py")
        shutil.copy(os.path.join(ROOT, "tests", "packages", "train.py"), script)
        said = self.run("bin/maypolerun", "-np", "2", self.path + "/bin/python", script, prefix=prefix, env=env).stdout
        size, first, last = re.search(r"LOSSES (\d) (\S+) (\S+)", said).groups()
        test.assertEqual(size, "2")
        test.assertLess(float(last), float(first) / 2)
        return set(re.findall(r"MAPPED (\S+)", said))
