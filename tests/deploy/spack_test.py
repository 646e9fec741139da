"""deploy/spack without Spack: reads what the package declares, by stand-ins for the directives that it uses."""

import os
import sys
import types
import unittest

import harness
import metadata

SPACK = os.path.join(harness.ROOT, "deploy/spack")


class PythonPackage:
    """Spack's, as far as the package uses it."""

    def __init__(self, prefix, target):
        self.prefix = types.SimpleNamespace(bin=prefix + "/bin")
        self.spec = types.SimpleNamespace(satisfies=lambda text: text == "target=%s:" % target)


class SpackTest(unittest.TestCase):
    def setUp(self):
        self.calls = []
        directives = ("maintainers", "license", "version", "depends_on", "requires")
        package = types.ModuleType("spack.package")
        package.PythonPackage = PythonPackage
        package.which = lambda path: lambda *arguments: self.calls.append((path, *arguments))
        for name in directives:
            setattr(package, name, self.recorder(name))
        sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": package})
        self.addCleanup(sys.modules.pop, "spack.package")
        self.addCleanup(sys.modules.pop, "spack")
        path = os.path.join(SPACK, "packages/maypole/package.py")
        with open(path, encoding="utf-8") as f:
            names = {}
            exec(compile(f.read(), path, "exec"), names)
        self.package = names["Maypole"]

    def recorder(self, name):
        return lambda *arguments, **options: self.calls.append((name, arguments, options))

    def said(self, name):
        return [(arguments, options) for called, arguments, options in self.calls if called == name]

    def test_what_it_says(self):
        self.assertTrue(issubclass(self.package, PythonPackage))
        self.assertEqual(self.said("version"), [((metadata.version(harness.ROOT),), {"expand": False})])
        self.assertIn((("python@%s:" % metadata.PYTHON.lstrip(">="),), {"type": ("build", "run")}), self.said("depends_on"))
        with open(os.path.join(SPACK, "repo.yaml"), encoding="utf-8") as f:
            self.assertEqual(f.read(), "repo:\n  namespace: maypole\n  api: v1.0\n")

    def test_the_wheel_of_each_architecture(self):
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        directory = os.path.realpath(os.environ["TEST_TMPDIR"])
        os.chdir(directory)
        wheels = ["maypole-1.2.3-py3-none-manylinux_2_%d_%s.whl" % (glibc, machine)
                  for glibc, machine in ((28, "aarch64"), (28, "x86_64"), (36, "x86_64"))]
        for name in wheels:
            with open(name, "w", encoding="utf-8"):
                pass
        for machine, name in (("x86_64", wheels[1]), ("aarch64", wheels[0])):
            url = self.package("/p", machine).url_for_version("1.2.3")
            self.assertEqual(url, "file://%s/%s" % (directory, name))
        self.assertIn("manylinux_*_x86_64.whl", self.package("/p", "x86_64").url_for_version("9.9.9"))

    def test_its_own_test(self):
        self.calls.clear()
        self.package("/p", "x86_64").test_programs()
        self.assertEqual(self.calls, [("/p/bin/maypolerun", "--version"), ("/p/bin/maypole-coordinator", "--version")])


if __name__ == "__main__":
    unittest.main()
