"""The scripts in deploy/: setup.sh against fake package tools, env.sh in several shells."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

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

    def setup_sh(self, *groups):
        env = dict(os.environ, PATH=os.path.join(self.dir, "bin"))
        return self.run_in(["/bin/sh", os.path.join(DEPLOY, "setup.sh"), *groups], env=env)

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
        self.write("lacking", "libgloo-dev\ncurl\n")
        rc, out, _ = self.setup_sh()
        self.assertEqual(rc, 0)
        self.assertIn("installing libgloo-dev curl\n", out)
        lock = "apt-get -q -o DPkg::Lock::Timeout=300 "
        expected = [lock + "update", lock + "install -y --no-install-recommends libgloo-dev curl"]
        self.assertEqual(self.calls(), expected)
        self.assertEqual(self.setup_sh()[0], 0)
        self.assertEqual(self.calls(), expected)

    def test_only_the_groups_that_are_named(self):
        self.write("lacking", "libgloo-dev\nchromium\npython3-torch\npython3-venv\n")
        for groups, installed in ((["build"], "libgloo-dev"), (["run"], "python3-torch"), (["wheel"], "python3-venv"),
                                  (["build", "run"], "libgloo-dev python3-torch"),
                                  ([], "libgloo-dev python3-torch chromium python3-venv")):
            with self.subTest(groups):
                self.write("calls", "")
                self.write("lacking", "libgloo-dev\nchromium\npython3-torch\npython3-venv\n")
                self.assertEqual(self.setup_sh(*groups)[0], 0)
                self.assertEqual(set(self.calls()[1].split("--no-install-recommends ")[1].split()), set(installed.split()))

    def test_each_package_counts_once(self):
        self.assertEqual(self.count(), self.count("build", "run", "test"))
        self.assertEqual(self.count("build", "build"), self.count("build"))
        self.assertLess(self.count("run", "wheel"), self.count("run") + self.count("wheel"))

    def test_no_such_group(self):
        self.assertEqual(self.setup_sh("build", "tests"), (2, "", "usage: setup.sh [build] [run] [test] [wheel]\n"))
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


if __name__ == "__main__":
    unittest.main()
