"""The scripts in deploy/: setup.sh against fake package tools, quickstart.sh with a fake wheel, env.sh in several shells,
build.sh with a fake Bazel."""
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile

DEPLOY = os.path.join(os.environ["TEST_SRCDIR"], "maypole/deploy")


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.dir)

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)
        return path

    def run_in(self, argv, **kwargs):
        r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)
        return r.returncode, r.stdout, r.stderr


class SetupTest(Case):
    """PATH contains only fakes, which record their calls in the file 'calls'."""

    def setUp(self):
        super().setUp()
        self.write("bin/env", '#!/bin/sh\nexec /usr/bin/env "$@"\n')
        self.write("bin/sh", '#!/bin/sh\nexec /bin/sh "$@"\n')
        self.write("calls", "")
        # The file 'lacking' lists the missing packages; without it, none is missing.
        self.write("bin/dpkg-query", """#!/bin/sh
for p; do :; done
[ ! -e {d}/lacking ] || while read -r l; do [ "$l" = "$p" ] && exit 1; done <{d}/lacking
printf installed
""".format(d=self.dir))
        self.write("bin/apt-get", """#!/bin/sh
echo "apt-get $*" >>{d}/calls
case "$*" in *install*) : >{d}/lacking ;; esac
""".format(d=self.dir))
        self.become(0)

    def become(self, uid):
        self.write("bin/id", "#!/bin/sh\necho %d\n" % uid)

    def setup_sh(self, *groups, deploy=DEPLOY):
        env = dict(os.environ, PATH=os.path.join(self.dir, "bin"))
        return self.run_in(["/bin/sh", os.path.join(deploy, "setup.sh"), *groups], env=env)

    def count(self, *groups):
        """How many packages these groups have."""
        rc, out, err = self.setup_sh(*groups)
        self.assertEqual((rc, err), (0, ""))
        return int(re.match(r"setup: all (\d+) packages are installed\n$", out).group(1))

    def calls(self):
        with open(os.path.join(self.dir, "calls")) as f:
            return f.read().splitlines()

    def test_nothing_is_missing(self):
        rc, out, err = self.setup_sh()
        self.assertEqual((rc, err), (0, ""))
        self.assertRegex(out, r"^setup: all \d+ packages are installed\n$")
        self.assertEqual(self.calls(), [])

    def test_only_what_is_missing_is_installed_then_nothing(self):
        self.write("lacking", "libhwy-dev\ncurl\n")
        rc, out, _ = self.setup_sh()
        self.assertEqual(rc, 0)
        self.assertIn("installing libhwy-dev curl\n", out)
        lock = "apt-get -q -o DPkg::Lock::Timeout=300 "
        expected = [lock + "update", lock + "install -y --no-install-recommends libhwy-dev curl"]
        self.assertEqual(self.calls(), expected)
        self.assertEqual(self.setup_sh()[0], 0)
        self.assertEqual(self.calls(), expected)

    def test_only_the_groups_that_are_named(self):
        self.write("lacking", "libhwy-dev\nchromium\npython3-torch\npython3-venv\n")
        for groups, installed in ((["build"], "libhwy-dev"), (["run"], "python3-torch"), (["wheel"], "python3-venv"),
                                  (["build", "run"], "libhwy-dev python3-torch"),
                                  ([], "libhwy-dev python3-torch chromium python3-venv")):
            with self.subTest(groups):
                self.write("calls", "")
                self.write("lacking", "libhwy-dev\nchromium\npython3-torch\npython3-venv\n")
                self.assertEqual(self.setup_sh(*groups)[0], 0)
                self.assertEqual(set(self.calls()[1].split("--no-install-recommends ")[1].split()), set(installed.split()))

    def test_packages_for_arm64_are_unpacked_only_for_aarch64(self):
        self.write("bin/dirname", '#!/bin/sh\nexec /usr/bin/dirname "$@"\n')
        self.write("deploy/setup.sh", "")
        shutil.copy(os.path.join(DEPLOY, "setup.sh"), os.path.join(self.dir, "deploy"))
        deploy = os.path.join(self.dir, "deploy")
        unpack = "tools/aarch64/debian_root.sh"
        self.write(unpack, '#!/bin/sh\necho "unpack $*" >>%s/calls\necho /there\n' % self.dir)
        self.assertEqual(self.setup_sh(deploy=deploy)[0], 0)
        self.assertEqual(self.calls(), [])
        self.write("lacking", "g++-aarch64-linux-gnu\n")
        rc, out, _ = self.setup_sh("aarch64", deploy=deploy)
        self.assertEqual(rc, 0)
        self.assertIn("--no-install-recommends g++-aarch64-linux-gnu", self.calls()[1])
        self.assertEqual(self.calls()[2], "unpack --fetch")
        self.assertIn("Debian's packages for arm64 are in /there\n", out)
        self.write(unpack, "#!/bin/sh\nexit 1\n")
        rc, _, err = self.setup_sh("aarch64", deploy=deploy)
        self.assertEqual((rc, err), (1, "setup: Debian's packages for arm64 cannot be unpacked, see above\n"))

    def test_each_package_counts_once(self):
        self.assertEqual(self.count(), self.count("build", "run", "test"))
        self.assertEqual(self.count("build", "build"), self.count("build"))
        self.assertLess(self.count("run", "wheel"), self.count("run") + self.count("wheel"))

    def test_what_is_built_needs_the_packages_of_build_alone(self):
        with open(os.path.join(DEPLOY, "setup.sh")) as f:
            packages = set(re.search(r'^build="([^"]*)"', f.read(), re.M).group(1).split())
        with open(os.path.join(DEPLOY, "../third_party/system/repositories.bzl")) as f:
            needs = {name: set(package.split()) for name, package in
                     re.findall(r'name = "(\w+)",(?:[^()]*?)package = "([^"]*)"', f.read())}
        with open(os.path.join(DEPLOY, "product_dependencies")) as f:
            repositories = set(re.findall(r"^@(\w+)//", f.read(), re.M)) & set(needs)
        self.assertIn("com_github_grpc_grpc", repositories)
        self.assertIn("com_google_googletest", needs)
        self.assertEqual({name: needs[name] - packages for name in repositories if needs[name] - packages}, {})

    def test_no_such_group(self):
        self.assertEqual(self.setup_sh("build", "tests"), (2, "", "usage: setup.sh [build] [run] [test] [wheel] [aarch64]\n"))
        self.assertEqual(self.calls(), [])

    def test_a_user_goes_through_sudo(self):
        self.become(1000)
        self.write("lacking", "curl\n")
        self.write("bin/sudo", '#!/bin/sh\necho sudo >>%s/calls\nexec "$@"\n' % self.dir)
        self.assertEqual(self.setup_sh()[0], 0)
        self.assertEqual(self.calls()[0], "sudo")

    def test_a_user_without_sudo_is_told_what_to_do(self):
        self.become(1000)
        self.write("lacking", "curl\n")
        rc, _, err = self.setup_sh()
        self.assertEqual(rc, 1)
        self.assertEqual(err, "setup: not root, and there is no sudo. As root, run: "
                              "apt-get install --no-install-recommends curl\n")

    def test_not_debian(self):
        os.unlink(os.path.join(self.dir, "bin/apt-get"))
        rc, _, err = self.setup_sh()
        self.assertEqual(rc, 1)
        self.assertIn("this is not Debian", err)


class QuickstartTest(Case):
    """quickstart.sh in a tree whose other scripts are fakes, which record their calls in the file 'calls'.

    The wheel is a fake, too; Python, venv and pip are the real ones. Nothing comes from a network.
    """

    def setUp(self):
        super().setUp()
        self.write("deploy/quickstart.sh", "")
        shutil.copy(os.path.join(DEPLOY, "quickstart.sh"), os.path.join(self.dir, "deploy/quickstart.sh"))
        self.write("calls", "")
        for name in ("deploy/setup.sh", "deploy/build.sh", "bin/bazel", "bin/g++", "bin/git", "bin/maypolerun"):
            self.record(name)
        self.write("deploy/env.sh", "")
        # For those that look for one to install packages with.
        self.write("bin/sudo", "#!/bin/sh\nexit 1\n")
        self.write("bin/apt-get", "#!/bin/sh\nexit 1\n")

    def record(self, name):
        self.write(name, '#!/bin/sh\necho %s "$*" >>%s/calls\n' % (os.path.basename(name), self.dir))

    def quickstart(self, *arguments, **variables):
        env = dict(os.environ, PATH=os.path.join(self.dir, "bin") + ":/usr/bin:/bin", PYTHON="/usr/bin/python3",
                   PYTHONPATH="/nonexistent", MAYPOLE_LIBRARY="/nonexistent", **variables)
        return self.run_in([os.path.join(self.dir, "deploy/quickstart.sh"), *arguments], cwd="/", env=env)

    def calls(self):
        with open(os.path.join(self.dir, "calls")) as f:
            return f.read().splitlines()

    def make_wheel(self, place, tag="manylinux_2_17_" + platform.machine(), torch=""):
        """A wheel with a program maypolerun, which records its call, and a module torch."""
        path = os.path.join(self.dir, place, "maypole-0.0.1-py3-none-%s.whl" % tag)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        info = "maypole-0.0.1.dist-info/"
        record = "#!/bin/sh\necho wheel maypolerun $PYTHONPATH$MAYPOLE_LIBRARY \"$*\" >>%s/calls\n" % self.dir
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in (("torch.py", torch), ("maypole-0.0.1.data/scripts/maypolerun", record),
                               (info + "METADATA", "Metadata-Version: 2.1\nName: maypole\nVersion: 0.0.1\n"),
                               (info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-%s\n" % tag),
                               (info + "RECORD", "")):
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o100755 << 16
                archive.writestr(entry, text)

    def trained(self):
        """The arguments of the wheel's maypolerun."""
        return [call.split("--endpoints-file ")[1].split()[1:] for call in self.calls()
                if call.startswith("wheel maypolerun -np 4 --nodes 2 --endpoints-file ")]

    def test_the_wheel_that_fits_trains_without_a_compiler(self):
        self.make_wheel("deploy", "manylinux_2_999_" + platform.machine())
        self.make_wheel("out/packages")
        rc, out, err = self.quickstart("--wheel", "--data-dir", "/d", "--epochs", "1")
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.trained(), [[self.dir + "/out/venv/bin/python", "examples/pytorch_fashion_mnist.py",
                                           "--data-dir", "/d", "--epochs", "1"]])
        self.assertEqual({call.split()[0] for call in self.calls()} & {"build.sh", "bazel", "g++", "git"}, set())
        self.assertRegex(out, r"quickstart: done after \d+ s\. Next:  \. out/venv/bin/activate; maypolerun --help\n$")

    def test_no_wheel(self):
        rc, _, err = self.quickstart("--wheel")
        self.assertEqual(rc, 1)
        self.assertEqual(err, "quickstart: there is no wheel of Maypole for %s in any of deploy . .. out/packages of %s: "
                              "deploy/make-wheel.sh makes one\n" % (platform.machine(), self.dir))

    def test_a_wheel_that_pip_does_not_take(self):
        self.make_wheel("deploy", "manylinux_2_999_" + platform.machine())
        rc, _, err = self.quickstart("--wheel")
        self.assertEqual(rc, 1)
        self.assertIn("quickstart: pip takes no wheel in any of deploy . .. out/packages, see above", err)

    def test_torch_from_nowhere(self):
        self.make_wheel("deploy", torch="raise ImportError")
        # As if the system had no torch either.
        rc, _, err = self.quickstart("--wheel", "--data-dir", "/d", TORCH_INDEX_URL="http://127.0.0.1:9/",
                                     PIP_FORCE_REINSTALL="1", PIP_FIND_LINKS="")
        self.assertEqual(rc, 1)
        self.assertIn("quickstart: torch could not be installed, see above: install it in %s/out/venv" % self.dir, err)
        self.assertEqual(self.calls()[-1], "setup.sh run")
        self.assertEqual(self.trained(), [])

    def test_from_source_installs_nothing_for_tests(self):
        rc, out, err = self.quickstart("--synthetic")
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.calls()[:2], ["setup.sh build run", "build.sh "])
        self.assertRegex(self.calls()[2], r"^maypolerun -np 4 --nodes 2 .* /usr/bin/python3 examples/\S+ --synthetic$")
        self.assertIn("Next:  . deploy/env.sh; maypolerun --help\n", out)


class EnvTest(Case):
    SHELLS = [s for s in ("sh", "dash", "bash", "zsh") if shutil.which(s)]

    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.dir, "deploy"))
        shutil.copy(os.path.join(DEPLOY, "env.sh"), os.path.join(self.dir, "deploy/env.sh"))

    def source(self, shell, path, cwd):
        script = '. %s; . %s; echo "$PATH"; echo "$PYTHONPATH"; echo "$MAYPOLE_LIBRARY"' % (path, path)
        env = dict(os.environ, PATH="/usr/bin:/bin", PYTHONPATH="/other")
        return self.run_in([shell, "-c", script], cwd=cwd, env=env)

    def test_sets_paths_once_in_every_shell_and_directory(self):
        self.write("out/bin/maypolerun", "")
        self.write("out/lib/libmaypole.so", "")
        d = self.dir
        for shell in self.SHELLS:
            for path, cwd in (("deploy/env.sh", d), (d + "/deploy/env.sh", "/"), ("./env.sh", d + "/deploy")):
                rc, out, err = self.source(shell, path, cwd)
                self.assertEqual((rc, err), (0, ""), shell)
                self.assertEqual(out.splitlines(), [
                    d + "/out/bin:/usr/bin:/bin", d + "/client/python:/other", d + "/out/lib/libmaypole.so"], shell)

    def test_says_that_nothing_is_built(self):
        for shell in self.SHELLS:
            _, _, err = self.source(shell, "deploy/env.sh", self.dir)
            self.assertIn("not built yet: run %s/deploy/build.sh" % self.dir, err)



class BuildTest(Case):
    """build.sh with a Bazel that only makes the files that it is asked for."""

    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.dir, "deploy"))
        shutil.copy(os.path.join(DEPLOY, "build.sh"), os.path.join(self.dir, "deploy/build.sh"))
        self.write("tools/ci/bazel.sh", "")
        self.write("tools/ci/progress.py", '#!/bin/sh\nexec "$@"\n')
        self.write("client/frameworks/framework_library.bzl", 'FRAMEWORKS = [\n    "jax",\n]\n')
        self.write("client/python/scripts/maypole-timeline", "")
        self.write("base/external/local_cuda/summary", "no CUDA")
        self.write("bin/bazel", """#!/bin/sh
if [ "$1" = info ]; then
  echo "bazel-bin: {d}/made"
  echo "output_base: {d}/base"
fi
for target; do
  case "$target" in //*) ;; *) continue ;; esac
  label="${{target#//}}"
  file="{d}/made/${{label%:*}}/${{label#*:}}"
  mkdir -p "$(dirname "$file")"
  echo "$label" >"$file"
done
""".format(d=self.dir))

    def build(self, *options):
        env = dict(os.environ, PATH=self.dir + "/bin:/usr/bin:/bin")
        rc, _, err = self.run_in(["/bin/sh", "deploy/build.sh", *options], cwd=self.dir, env=env)
        self.assertEqual(rc, 0, err)
        made = {}
        for directory, _, names in os.walk(os.path.join(self.dir, "out")):
            for name in names:
                with open(os.path.join(directory, name)) as f:
                    made[os.path.relpath(os.path.join(directory, name), self.dir)] = f.read().strip()
        return made

    def test_programs_and_libraries_have_their_own_names(self):
        self.assertEqual(self.build(), {
            "out/bin/maypole-coordinator": "coordinator:maypole-coordinator",
            "out/bin/maypole-worker": "worker:maypole-worker",
            "out/bin/maypolerun": "client/launcher:maypolerun",
            "out/bin/maypolectl": "client/ctl:maypolectl",
            "out/bin/maypole-timeline": "",
            "out/lib/libmaypole.so": "client:libmaypole.so",
            "out/lib/libmaypole_jax.so": "client:libmaypole_jax.so"})

    def test_what_the_wheel_is_made_of(self):
        self.assertEqual(self.build("--portable"), {
            "out/portable/maypole": "tools/programs:maypole",
            "out/portable/start-program": "tools/programs:start-program",
            "out/portable/maypolerun": "client/launcher:portable/maypolerun",
            "out/portable/libmaypole.so": "client:portable/libmaypole.so",
            "out/portable/libmaypole_jax.so": "client:portable/libmaypole_jax.so"})


if __name__ == "__main__":
    unittest.main()
