"""The wheel, installed by pip in a fresh environment, trains; the sdist reports what it needs."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import cubins
import environments
import installed
from installed import HOROVOD, PYTHON, ROOT
import elf
import metadata
import sdist
import wheel

SYSTEM = re.compile(r"/(lib(c|m|dl|rt|pthread|resolv|nss_\w+)|ld-linux-x86-64)\.so\.\d+[.\d]*$")


def files(top):
    return {os.path.relpath(os.path.join(at, name), top) for at, _, names in os.walk(top) for name in names
            if "__pycache__" not in at}


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.wheel = installed.make_wheel(cls.dir)
        cls.environment = installed.Environment(os.path.join(cls.dir, "env"))
        cls.env = cls.environment.path
        cls.before = files(cls.env)
        cls.environment.pip("install", "--no-index", "--no-deps", cls.wheel)

    def train(self, *prefix, env=None):
        return self.environment.check_training(self, *prefix, env=env)

    def test_trains_with_what_is_in_the_environment_alone(self):
        mapped = self.train()
        at = os.path.realpath(self.env)
        for name in ("maypolerun", "maypole", "libmaypole.so"):
            self.assertTrue([p for p in mapped if os.path.basename(p) == name], (name, mapped))
        self.assertEqual({p for p in mapped if not p.startswith(at) and not SYSTEM.search(p)}, set())

    def binaries(self):
        (package,) = glob.glob(self.env + "/lib/python3*/site-packages/maypole")
        return [os.path.join(package, name) for name in files(package)
                if name.startswith(("bin/", "lib/")) and not name.endswith(".py")]

    def test_runs_where_only_an_old_glibc_is(self):
        binaries = self.binaries()
        self.assertEqual(len(binaries), len(wheel.PROGRAMS) + 1 + len(wheel.libraries(ROOT)))
        for path in binaries:
            with self.subTest(os.path.basename(path)):
                self.assertEqual(set(elf.needed(path)) - set(elf.SYSTEM), set())
                versions = elf.symbol_versions(path)
                self.assertEqual(set(versions), {"GLIBC"})
                self.assertLessEqual(versions["GLIBC"], (2, 28))
        (tag,) = re.findall(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", self.wheel)
        self.assertLessEqual(int(tag), 28)
        self.assertLessEqual(os.path.getsize(self.wheel), installed.MOST_BYTES)

    def test_what_needs_more_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, r"/usr/bin/true needs glibc 2\.3\d: it has to run with 2\.28"):
            elf.check_portable(["/usr/bin/true"])
        with self.assertRaisesRegex(RuntimeError, r"/usr/bin/ld needs libbfd"):
            elf.check_portable(["/usr/bin/ld"])

    def test_has_the_licenses_of_what_is_linked_in(self):
        (info,) = glob.glob(self.env + "/lib/python3*/site-packages/maypole-*.dist-info")
        licenses = set(os.listdir(info + "/licenses"))
        archives = set()
        for script in glob.glob(os.path.join(ROOT, "third_party/portable/lib/lib*.a")):
            with open(script, "rb") as f:
                archives.update(re.findall(r"/\S+\.a\b", f.read().decode()) if f.read(5) == b"GROUP" else ())
        said = subprocess.run(["dpkg-query", "-S", *sorted(archives)], check=True, capture_output=True, text=True).stdout
        packages = {line.partition(":")[0] for line in said.splitlines()}
        self.assertIn("libgrpc-dev", packages)
        self.assertEqual(packages - licenses, set())

    def test_its_types_are_seen(self):
        (package,) = glob.glob(self.env + "/lib/python3*/site-packages/maypole")
        self.assertIn("py.typed", files(package))

    def test_scripts_that_import_horovod(self):
        code = "import horovod.torch as hvd; hvd.init(); print('SIZE', hvd.size(), hvd.__name__)"
        done = subprocess.run([self.env + "/bin/maypolerun", "--horovod-shim", "-np", "2", self.env + "/bin/python", "-c",
                               code], env={}, cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("SIZE 2 horovod.torch"), 2)

    def test_the_extra_horovod(self):
        import_it = "import horovod.torch as hvd; hvd.init(); print('SIZE', hvd.size(), hvd.__name__)"
        again = installed.Environment(os.path.join(self.dir, "extra"))
        links = installed.directory()
        self.addCleanup(shutil.rmtree, links)
        shutil.copy(self.wheel, links)
        installed.make_horovod_wheel(links)
        again.pip("install", "--no-index", "--no-deps", self.wheel)
        self.assertIn("No module named 'horovod'", again.run("bin/python", "-c", "import horovod", status=1).stderr)
        requires = again.run("bin/python", "-c", "import importlib.metadata as m; print(m.requires('maypole'))").stdout
        for extra in ("torch", "run", "ray", "horovod"):
            self.assertIn(f'; extra == "{extra}"', requires)
        again.pip("install", "--no-index", "--find-links", links, "maypole[horovod]")
        for program in ("maypolerun", "horovodrun"):
            said = again.run("bin/" + program, "-np", "2", again.path + "/bin/python", "-c", import_it).stdout
            self.assertEqual(said.count("SIZE 2 horovod.torch"), 2, program)
        self.assertIn("maypolerun", again.run("bin/horovodrun", "--version").stdout)
        # Horovod, installed over it, or under it.
        (site,) = glob.glob(again.path + "/lib/python3*/site-packages")
        other = os.path.join(site, "horovod-0.28.1.dist-info")
        os.mkdir(other)
        with open(os.path.join(other, "METADATA"), "w") as f:
            f.write("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
        error = again.run("bin/python", "-c", "import horovod.torch", status=1).stderr
        self.assertIn("horovod 0.28.1 and maypole-horovod are both installed in " + site, error)
        self.assertIn("pip uninstall horovod maypole-horovod", error)
        shutil.rmtree(other)
        again.pip("uninstall", "--yes", "maypole-horovod")
        self.assertEqual({p for p in files(again.path) if "/horovod/" in p and "horovod_shim" not in p}, set())
        self.assertFalse(os.path.exists(again.path + "/bin/horovodrun"))
        again.run("bin/maypolerun", "--version")

    def test_a_function_of_a_script_and_a_config_file(self):
        with open(os.path.join(self.dir, "run.yaml"), "w", encoding="utf-8") as f:
            f.write("params:\n  fusion_threshold_mb: 3\n")
        code = ("import horovod, maypole, os\n"
                "def bytes_of(rank): return os.environ['MAYPOLE_FUSION_THRESHOLD'] + rank\n"
                "print(maypole.run(bytes_of, ('!',), np=2, options=['--config-file', %r]))\n"
                "print(horovod.run(lambda: os.environ['HOROVOD_SIZE'], num_proc=2))\n" % os.path.join(self.dir, "run.yaml"))
        package = subprocess.run([self.env + "/bin/python", "-c", "import maypole; print(maypole.__path__[0])"], cwd="/",
                                 env={}, capture_output=True, text=True, check=True).stdout.strip()
        done = subprocess.run([self.env + "/bin/python", "-c", code], env={"PYTHONPATH": package + "/horovod_shim"},
                              cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, "['3145728!', '3145728!']\n['2', '2']\n"), done.stderr)

    def test_has_kernels_and_links_no_cuda(self):
        (package,) = glob.glob(self.env + "/lib/python3*/site-packages/maypole")
        for name in ("bin/maypole", "lib/libmaypole.so"):
            cubins.check(self, os.path.join(package, name))
        for path in self.binaries():
            self.assertFalse([name for name in elf.needed(path) if re.match(r"lib(cuda|nccl|nv)", name)], path)
        said = self.environment.run("bin/maypolerun", "--check-build").stdout
        for architecture in cubins.expected():
            self.assertRegex(said, r"\[X\] kernels: code for .*\bsm_%d\b" % architecture)

    def test_other_versions_of_python(self):
        code = ("import maypole as hvd, sys; from maypole import _native; hvd.init(); "
                "[_native.framework_library(name) for name in ('jax', 'mxnet', 'tensorflow')]; "
                "print('OK', hvd.allgather_object(hvd.rank()), '%d.%d' % sys.version_info[:2])")
        for version in ("3.9", "3.13"):
            with self.subTest(version):
                python = environments.interpreter(version)
                other = os.path.join(self.dir, version)
                # With its own pip, because Debian's is too old for some.
                subprocess.run([python, "-m", "venv", other], check=True)
                environment = installed.Environment(other)
                environment.run("bin/python", "-m", "pip", "install", "--no-index", "--no-deps", self.wheel)
                said = environment.run("bin/maypolerun", "-np", "2", other + "/bin/python", "-c", code).stdout
                self.assertEqual(said.count("OK [0, 1] " + version), 2, said)

    def test_another_user_and_horovods_variables(self):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        self.train(*nobody, env=dict(HOROVOD, PATH="/usr/bin:/bin", HOME="/nonexistent"))

    def test_every_program_starts_and_same_inputs_give_the_same_wheel(self):
        for name in wheel.PROGRAMS + ("maypole-node-ranks", "maypole-timeline"):
            done = subprocess.run([os.path.join(self.env, "bin", name), "--version"], env={}, capture_output=True,
                                  text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertIn(metadata.version(ROOT), done.stdout)
        again = tempfile.mkdtemp(dir=self.dir)
        with open(self.wheel, "rb") as a, open(installed.make_wheel(again), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_uninstall_leaves_nothing(self):
        self.environment.pip("uninstall", "--yes", "maypole")
        left = files(self.env) - self.before
        self.environment.pip("install", "--no-index", "--no-deps", self.wheel)
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
