"""The wheel on other Debians than the one that made it: pip installs it; jobs, daemons with TLS, a job on two systems.

Aarch64Test: the wheel for aarch64, which is cross-compiled, under qemu-user.
"""

import glob
import os
import pwd
import re
import shutil
import subprocess
import unittest
import zipfile

import cubins
import installed  # it makes the others importable
import machine
from installed import ROOT
import cuda_toolkit
import elf
import wheel

# Of each suite: glibc and Python.
SYSTEMS = {"bullseye": ("2.31", "3.9"), "trixie": ("2.41", "3.13")}
# Of PyPI's tool with the policies of manylinux.
AUDITWHEEL = "auditwheel==6.8.2"
_PACKAGES = ["python3-numpy", "python3-venv"]
# What is the processor's: shared memory, its order, reductions, and processes.
UNIT_TESTS = ["//common:%s_test" % name for name in (
    "adasum", "board", "checksum", "copy", "process_end", "record", "reduce", "reduce_ops", "signature",
    "spawn", "trace")] + ["//client:%s_test" % name for name in (
    "arena", "progress_engine", "progress_engine_random", "rank_core", "rank_core_join", "rank_core_results")]
_ROLES = "python3 /srv/system_roles.py "
_STATUS = r"\d+ jobs?, \d+ nodes?, \d+ running ranks?"

# Fits a line; says on which processor, with which glibc and Python.
TRAIN = """
import numpy, platform, maypole as hvd
hvd.init()
random = numpy.random.default_rng(hvd.rank())
weights = numpy.zeros(8)
for step in range(200):
    inputs = random.normal(size=(16, 8))
    gradient = inputs.T @ (inputs @ weights - inputs.sum(1)) / 16
    weights -= 0.1 * hvd.allreduce(gradient, name="gradient")
print("TRAINED %s of %d, %s, glibc %s, Python %s: %s" % (
    hvd.rank(), hvd.size(), platform.machine(), platform.libc_ver()[1], ".".join(platform.python_version_tuple()[:2]),
    abs(weights - 1).max() < 1e-3))
"""


class Machines(unittest.TestCase):
    """A machine of each suite, with the wheel; BUILD.bazel names the classes that are run."""
    suites = SYSTEMS
    architecture, processor = None, "x86_64"  # this machine's

    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.wheel = cls.make_wheel(cls.dir)
        secret = os.path.join(cls.dir, "secret")
        with open(secret, "w", encoding="utf-8") as f:
            f.write("0123456789abcdef0123456789abcdef\n")
        os.chmod(secret, 0o600)
        certs = os.path.join(cls.dir, "certs")
        subprocess.run([os.path.join(installed.ROOT, "deploy", "make-certs.sh"), certs, "127.0.0.1"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.machines = {suite: cls.machine(suite, cls.wheel, cls.architecture) for suite in cls.suites}

    @classmethod
    def make_wheel(cls, out):
        return installed.make_wheel(out)

    @classmethod
    def machine(cls, suite, made, architecture=None):
        """A machine with the wheel `made` in /srv/env."""
        original = os.path.join(cls.dir, "%s-%s-" % (suite, architecture))
        machine.make(original, suite, _PACKAGES, architecture)
        here = machine.Machine(original, original + "1")
        cls.addClassCleanup(here.remove)
        here.write("/srv/train.py", TRAIN)
        shutil.copytree(os.path.join(cls.dir, "certs"), here.path + "/srv/certs")
        roles = os.path.join(os.path.dirname(os.path.realpath(__file__)), "system_roles.py")
        for path in (os.path.join(cls.dir, "secret"), made, roles):
            shutil.copy(path, here.path + "/srv")
        here.run("python3 -m venv --system-site-packages /srv/env && /srv/env/bin/pip install --no-index /srv/*.whl")
        return here

    def copy(self, of):
        """Another machine like this: one machine runs one command at a time."""
        made = machine.Machine(of.path, of.path + "2")
        self.addCleanup(made.remove)
        return made

    def check_trained(self, said, size, systems):
        """One line of TRAIN from each rank; each (suite, processor) of `systems` has the same number of them."""
        found = re.findall(r"TRAINED (\d+) of %d, (\w+), glibc (\S+), Python (\S+): True" % size, said)
        self.assertEqual(sorted(int(rank) for rank, *_ in found), list(range(size)), said)
        for suite, processor in systems:
            here = [rank for rank, *system in found if system == [processor, *SYSTEMS[suite]]]
            self.assertEqual(len(here), size // len(systems), said)

    def check_job_with_tls(self, coordinator, first, second, systems):
        """A job of two agents, one on each of two machines, and a coordinator on a third; returns what maypolectl says."""
        with coordinator.start(_ROLES + "coordinator") as process:
            # Behind lines of its log.
            address = next(line for line in process.stdout if line.startswith("address="))[len("address="):].strip()
            with first.start(_ROLES + "node %s 0" % address) as node:
                said = second.run(_ROLES + "node %s 1" % address) + node.stdout.read()
            self.check_trained(said, 2, systems)
            return first.run(_ROLES + "status " + address)

    def test_one_node(self):
        for suite, here in self.machines.items():
            with self.subTest(suite):
                said = here.run("/srv/env/bin/maypolerun -np 2 /srv/env/bin/python3 /srv/train.py")
                self.check_trained(said, 2, [(suite, self.processor)])

    def test_two_nodes(self):
        for suite, here in self.machines.items():
            with self.subTest(suite):
                said = here.run("/srv/env/bin/maypolerun -np 4 --nodes 2 /srv/env/bin/python3 /srv/train.py")
                self.check_trained(said, 4, [(suite, self.processor)])

    def test_what_is_there(self):
        for suite, here in self.machines.items():
            with self.subTest(suite):
                said = here.run("/srv/env/bin/maypolerun --check-build")
                for what in ("maypole-coordinator", "maypole-worker", "shared memory"):
                    self.assertIn("[X] " + what, said)
                for program in ("maypolerun", "maypolectl", "maypole-worker", "maypole-coordinator"):
                    self.assertRegex(here.run("/srv/env/bin/%s --version" % program), r"^%s \d+\.\d+\.\d+\n" % program)

    def test_auditwheel_agrees(self):
        place = os.path.join(self.dir, "auditwheel")
        subprocess.run([installed.PYTHON, "-m", "venv", place], check=True)
        subprocess.run([place + "/bin/pip", "install", "--quiet", AUDITWHEEL], check=True)
        said = subprocess.run([place + "/bin/auditwheel", "show", self.wheel], check=True, capture_output=True,
                              text=True).stdout
        print(said)
        (tag,) = re.findall(r'"(manylinux_2_\d+_\w+?)"', " ".join(said.split()))[:1]
        self.assertIn("-%s.whl" % tag, self.wheel)
        self.assertLessEqual(int(tag.split("_")[2]), elf.NEWEST_GLIBC)


class SystemsTest(Machines):
    def test_a_job_on_two_systems_with_tls(self):
        old, new = self.machines["bullseye"], self.machines["trixie"]
        coordinator = self.copy(new)
        for other, suites in ((self.copy(old), ["bullseye"]), (new, ["bullseye", "trixie"])):
            with self.subTest(suites):
                said = self.check_job_with_tls(coordinator, old, other, [(suite, self.processor) for suite in suites])
                self.assertRegex(said, _STATUS)


class Aarch64Test(Machines):
    """deploy/make-wheel.sh --arch=aarch64, in a directory of its own, and its wheel."""
    suites = {"bullseye": SYSTEMS["bullseye"]}
    architecture, processor = "arm64", "aarch64"

    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(machine.emulation("aarch64"))
        super().setUpClass()
        os.mkdir(os.path.join(cls.dir, "native"))

    @classmethod
    def make_wheel(cls, out):
        cls.source = installed.unpack_sdist(out)
        cls.addClassCleanup(cls.build, ". tools/ci/bazel.sh && bazel clean --expunge")
        if not machine.reaches_mirror("bookworm"):
            raise unittest.SkipTest("Debian's mirror cannot be reached, and packages for arm64 come from there")
        cls.build("tools/aarch64/debian_root.sh --fetch")
        cls.build("deploy/make-wheel.sh --arch=aarch64 " + out)
        (made,) = glob.glob(out + "/*_aarch64.whl")
        return made

    @classmethod
    def build(cls, command):
        """Runs a command of the shell among the sources, with this user's cache of Bazel; returns what it has printed."""
        env = {"PATH": os.environ["PATH"], "HOME": pwd.getpwuid(os.getuid()).pw_dir, "PIP_CONFIG_FILE": "/dev/null"}
        done = subprocess.run(["sh", "-c", command], env=env, cwd=cls.source, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError("%s: status %d\n%s" % (command, done.returncode, done.stdout[-10000:]))
        return done.stdout

    def test_needs_only_an_old_glibc_and_is_small(self):
        place = os.path.join(self.dir, "unpacked")
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(place)
            names = archive.namelist()
        binaries = [name for name in names if re.match("maypole/(bin|lib)/", name)]
        self.assertEqual(len(binaries), len(wheel.PROGRAMS) + 1 + len(wheel.libraries(ROOT)))
        for name in binaries:
            path = os.path.join(place, name)
            self.assertEqual(elf.machine(path), "aarch64", name)
            self.assertEqual(set(elf.needed(path)) - set(elf.SYSTEM), set(), name)
            elf.check_portable([path])
        self.assertLessEqual(os.path.getsize(self.wheel), installed.MOST_BYTES)
        # The same files as the wheel for this machine, and licenses.
        with zipfile.ZipFile(installed.make_wheel(os.path.join(self.dir, "native"))) as archive:
            self.assertEqual(sorted(archive.namelist()), sorted(names))

    def test_same_programs_give_the_same_wheel(self):
        again = os.path.join(self.dir, "again")
        self.build("deploy/make-wheel.sh --arch=aarch64 " + again)
        with open(self.wheel, "rb") as a, open(os.path.join(again, os.path.basename(self.wheel)), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_has_the_kernels_that_a_toolkit_here_makes(self):
        architectures, _ = cuda_toolkit.probe(cuda_toolkit.home())
        with zipfile.ZipFile(self.wheel) as archive:
            for name in ("maypole/bin/maypole", "maypole/lib/libmaypole.so"):
                self.assertEqual(cubins.code(archive.read(name)), {int(each): cubins.IMAGES for each in architectures}, name)

    def test_a_job_on_two_processors_with_tls(self):
        native = self.machine("bullseye", installed.make_wheel(os.path.join(self.dir, "native")))
        said = self.check_job_with_tls(self.copy(native), native, self.machines["bullseye"],
                                       [("bullseye", "x86_64"), ("bullseye", "aarch64")])
        self.assertRegex(said, _STATUS)

    def test_unit_tests(self):
        said = self.build("bazel test -c opt --config=aarch64 --test_timeout=1800 %s" % " ".join(UNIT_TESTS))
        self.assertRegex(said, r"Executed \d+ out of %d tests: %d tests pass\." % (len(UNIT_TESTS), len(UNIT_TESTS)))


if __name__ == "__main__":
    unittest.main()
