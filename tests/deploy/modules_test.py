"""deploy/lmod: the modulefile under a real Lmod."""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import metadata

VERSION = metadata.version(harness.ROOT)
INIT = "/usr/share/lmod/lmod/init/bash"
MODULES = os.path.join(harness.ROOT, "deploy/lmod")


@unittest.skipUnless(os.path.exists(INIT), "Lmod is not installed (lmod)")
class ModuleTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpl", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        # As `pip install --target` leaves it.
        for name in (VERSION + "/maypole", VERSION + "/bin", "modules/horovod", "modules/maypole"):
            os.makedirs(os.path.join(self.dir, name))
        self.root = os.path.join(self.dir, VERSION)
        open(os.path.join(self.root, "maypole/__init__.py"), "w").close()
        open(os.path.join(self.dir, "modules/horovod/0.28.1.lua"), "w").close()

    def module(self, commands, prefix=None):
        """What bash prints in which `module` is defined; it ends at the first command that fails."""
        script = "set -e; . %s; module use %s %s/modules; %s" % (INIT, MODULES, self.dir, commands)
        env = {"HOME": self.dir, "PATH": "/usr/bin:/bin", "LMOD_PAGER": "none", "LC_ALL": "C.UTF-8",
               "MAYPOLE_MODULE_PREFIX": prefix or self.dir, "PYTHONPATH": "/other"}
        return subprocess.run(["bash", "--noprofile", "--norc", "-c", script], env=env, capture_output=True, text=True,
                              timeout=60)

    def test_load_sets_and_unload_restores(self):
        said = self.module('env | sort >"$HOME/before"; module load maypole; '
                           'echo "$PATH"; echo "$PYTHONPATH"; echo "$MAYPOLE_LIBRARY"; '
                           'module unload maypole; env | sort >"$HOME/after"')
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertEqual(said.stdout.splitlines(), [self.root + "/bin:/usr/bin:/bin", self.root + ":/other",
                                                    self.root + "/maypole/lib/libmaypole.so"])
        self.assertEqual(self.variables("after"), self.variables("before"))

    def variables(self, name):
        """Without Lmod's own, and bash's last argument."""
        with open(os.path.join(self.dir, name), encoding="utf-8") as f:
            return [line for line in f if not line.startswith(("_", "LMOD", "LOADEDMODULES", "__LMOD"))]

    def test_help_and_whatis(self):
        said = self.module("module help maypole/" + VERSION + " 2>&1; module whatis maypole 2>&1").stdout
        self.assertIn("maypolerun -np 4 python3 train.py", said)
        self.assertIn("Version: " + VERSION, said)

    def test_horovods_module_conflicts(self):
        said = self.module("module load horovod; module load maypole")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("horovod", said.stderr)
        self.assertIn("maypole", said.stderr)

    def test_nothing_is_installed(self):
        said = self.module("module load maypole", prefix="/nonexistent")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("there is no Maypole in /nonexistent/" + VERSION, " ".join(said.stderr.split()))  # Lmod wraps lines


if __name__ == "__main__":
    unittest.main()
