"""deploy/conda without conda: a stand-in makes a venv where conda would make an environment. The rest is real."""

import glob
import os
import re
import shutil
import subprocess
import unittest

import harness
import installed
import yaml

CONDA = os.path.join(harness.ROOT, "deploy/conda")

# conda env create --prefix PREFIX --file FILE
STAND_IN = """\
#!/bin/sh
[ "$1 $2 $3 $5" = "env create --prefix --file" ] && [ -f "$6" ] || exit 2
exec {python} -m venv "$4"
"""


class CondaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.wheel = installed.make_wheel(cls.dir)

    def run_ok(self, argv, **kwargs):
        env = {"PATH": "/usr/bin:/bin", "HOME": self.dir, **kwargs.pop("env", {})}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, **kwargs)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_environment_and_post_build(self):
        with open(os.path.join(CONDA, "environment.yml"), encoding="utf-8") as f:
            environment = yaml.safe_load(f)
        self.assertEqual(sorted(environment), ["channels", "dependencies", "name"])
        for dependency in environment["dependencies"]:
            self.assertRegex(dependency, r"^[a-z-]+( >=[\d.]+)?$")
        conda = os.path.join(self.dir, "conda")
        with open(conda, "w", encoding="utf-8") as f:
            f.write(STAND_IN.format(python=harness.PYTHON))
        os.chmod(conda, 0o755)
        prefix = os.path.join(self.dir, "environment")
        said = self.run_ok([os.path.join(CONDA, "create-env.sh"), prefix, self.wheel], env={"CONDA": conda})
        lines = sorted(line for line in said.splitlines() if "<stdout>" in line)
        self.assertEqual(lines, ["[0]<stdout>:rank 0 of 2", "[1]<stdout>:rank 1 of 2"])

    def test_recipe(self):
        with open(os.path.join(CONDA, "recipe/meta.yaml"), encoding="utf-8") as f:
            text = f.read()
        version = re.search(r'^{% set version = "(.*)" %}$', text, re.M).group(1)
        # conda-build knows Jinja; here only what the recipe uses.
        text = re.sub(r"{{ version }}", version, re.sub(r"^{% .* %}$", "", text, flags=re.M))
        recipe = yaml.safe_load(re.sub(r"{{ environ.get.* }}", self.dir, text))
        self.assertEqual((recipe["package"]["name"], recipe["package"]["version"]),
                         ("maypole", re.match(r"maypole-([^-]*)-", os.path.basename(self.wheel)).group(1)))
        prefix = os.path.join(self.dir, "prefix")
        self.run_ok([harness.PYTHON, "-m", "venv", prefix])
        python = os.path.join(prefix, "bin/python")
        self.run_ok([os.path.join(CONDA, "recipe/build.sh")], cwd=recipe["source"]["path"],
                    env={"PYTHON": python, "PREFIX": prefix, "PKG_VERSION": version})
        self.assertEqual(len(glob.glob(prefix + "/lib/python3*/site-packages/maypole/lib/libmaypole.so")), 1)
        for module in recipe["test"]["imports"]:
            self.run_ok([python, "-c", "import " + module])
        for command in recipe["test"]["commands"]:
            self.assertIn(version, self.run_ok(["sh", "-c", command], env={"PATH": prefix + "/bin:/usr/bin:/bin"}))

    def test_what_is_missing_is_named(self):
        for script, args, text in (("create-env.sh", ["/p", self.wheel], "create-env: conda is not installed"),
                                   ("create-env.sh", [], "usage: create-env.sh PREFIX WHEEL"),
                                   ("post-build.sh", ["/nowhere", self.wheel], "there is no Python in /nowhere")):
            done = subprocess.run([os.path.join(CONDA, script), *args], env={"PATH": "/usr/bin:/bin"}, text=True,
                                  capture_output=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
