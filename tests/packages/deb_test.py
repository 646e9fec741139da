"""The Debian packages: their contents, which work where they are unpacked. apt_test.py installs the packages."""

import gzip
import os
import re
import shutil
import subprocess
import unittest

import installed  # it makes the others importable
from installed import PYTHON, ROOT
import deb
import man
import metadata
import wheel

PACKAGES = ("maypole", "python3-maypole", "maypole-coordinator", "maypole-worker")
WHEN = 1700000000
_REDUCE = ("import numpy, maypole as hvd; hvd.init(); "
           "print('SUM', hvd.allreduce(numpy.ones(3), op=hvd.Sum).tolist(), hvd.size())")


def output(*argv, **kwargs):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, **kwargs).stdout


def contents(deb_file):
    """{path: (mode, owner)} of a package's files."""
    lines = [line.split(None, 5) for line in output("dpkg-deb", "--contents", deb_file).splitlines()]
    return {line[5].split(" -> ")[0].lstrip("."): (line[0], line[1]) for line in lines}


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.debs = installed.make_debs(cls.dir, WHEN, level=0)
        cls.root = os.path.join(cls.dir, "root")
        for path in cls.debs.values():
            subprocess.run(["dpkg-deb", "--extract", path, cls.root], check=True)
        cls.files = {package: contents(path) for package, path in cls.debs.items()}

    def path(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def control(self, package, script):
        """A file of the package's control archive; None if it is not there."""
        said = subprocess.run(["dpkg-deb", "--info", self.debs[package], script], capture_output=True, text=True,
                              check=False)
        return said.stdout if said.returncode == 0 else None

    def test_control(self):
        self.assertEqual(sorted(self.debs), sorted(PACKAGES))
        said = output("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}, ${Provides}\n")
        here = {name.split()[0] for names in re.findall("^installed (.*)$", said, re.M)
                for name in names.split(",") if name.strip()}
        for package in PACKAGES:
            fields = dict(re.findall(r"^(\S+): (.*)$", self.control(package, "control"), re.M))
            self.assertEqual(fields["Version"], deb.version(ROOT))
            self.assertGreater(int(fields["Installed-Size"]), 10)
            for alternatives in fields["Depends"].split(", "):
                name = alternatives.split()[0]
                # It was built here, so what it needs is here, too.
                self.assertIn(name, here.union(PACKAGES), package)
            self.assertEqual("libgrpc" in fields["Depends"], package == "maypole", fields["Depends"])
        self.assertEqual(self.control("maypole-worker", "conffiles").split(),
                         ["/etc/maypole/worker.conf", "/etc/needrestart/conf.d/maypole-worker.conf"])
        self.assertEqual(self.control("maypole-coordinator", "conffiles").split(), ["/etc/maypole/coordinator.conf"])

    def test_files(self):
        everything = {}
        for package, files in self.files.items():
            for path, (mode, owner) in files.items():
                self.assertEqual(owner, "root/root", path)
                self.assertNotIn("w", mode[4:] if mode[0] != "l" else "", path)
                if not path.endswith("/"):
                    self.assertNotIn(path, everything)
                everything[path] = package
            for text in ("copyright", "changelog.gz", "changelog.Debian.gz"):
                self.assertIn("/usr/share/doc/%s/%s" % (package, text), files)
        self.assertEqual(everything["/usr/lib/python3/dist-packages/maypole/py.typed"], "python3-maypole")
        for link in (path for path in everything if os.path.islink(self.path(path))):
            self.assertTrue(os.path.exists(self.path(link)), link)
        programs = [os.path.basename(path) for path in everything if re.match("/usr/bin/.", path)]
        self.assertEqual(sorted(programs), sorted(man.SECTIONS))
        with gzip.open(self.path("/usr/share/doc/maypole/changelog.Debian.gz"), "rt") as f:
            self.assertIn("Tue, 14 Nov 2023 22:13:20 +0000", f.read())

    def test_every_program_has_a_page_of_its_help(self):
        for program, section in man.SECTIONS.items():
            page = self.path("/usr/share/man/man%d/%s.%d.gz" % (section, program, section))
            shown = subprocess.run(["man", "--warnings", "--local-file", page], capture_output=True, text=True,
                                   check=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
            self.assertEqual(shown.stderr, "", program)
            text = shown.stdout
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            self.assertRegex(text, r"NAME\n +%s - [a-z]" % program)
            for heading in ("SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
                self.assertRegex(text, "(?m)^%s$" % heading, program)
            options = re.findall(r"^ {2,4}(-[-\w]+)", self.run_program(program, "--help"), re.M)
            self.assertGreaterEqual(len(options), 2)
            for option in options:
                self.assertRegex(text, r"(?m)^ +(-[-\w]+(=\S+| \S+)?, )*%s\b" % option, program)
            self.assertIn("Maypole " + metadata.version(ROOT), text)

    def run_program(self, program, *args, **kwargs):
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": self.path("/usr/lib/python3/dist-packages"), "COLUMNS": "80"}
        return output(self.path("/usr/bin/" + program), *args, env=env, cwd="/", timeout=120, **kwargs)

    def test_a_job_where_it_is_unpacked(self):
        said = self.run_program("maypolerun", "-np", "2", PYTHON, "-c", _REDUCE)
        self.assertEqual(said.count("SUM [2.0, 2.0, 2.0] 2"), 2)
        shim = "import horovod, maypole; print('SHIM', horovod.__path__[0])"
        said = self.run_program("maypolerun", "--horovod-shim", "-np", "1", PYTHON, "-c", shim)
        self.assertIn("SHIM " + self.path("/usr/lib/maypole"), said)
        for program in man.SECTIONS:
            self.assertIn(metadata.version(ROOT), self.run_program(program, "--version"))

    def test_completions(self):
        bash = ("source {0}/usr/share/bash-completion/completions/maypole-worker; "
                "COMP_WORDS=({0}/usr/bin/maypole-worker --vers); COMP_CWORD=1; "
                "_maypole_worker {0}/usr/bin/maypole-worker; echo ${{COMPREPLY[@]}}").format(self.root)
        self.assertEqual(output("bash", "-c", bash), "--version\n")
        for program in wheel.PROGRAMS:
            function = "_" + program.replace("-", "_")
            with open(self.path("/usr/share/zsh/vendor-completions/" + function), encoding="utf-8") as f:
                lines = f.read().splitlines()
            self.assertEqual((lines[0], lines[-1]), ("#compdef " + program, function + ' "$@"'))

    def test_maintainer_scripts(self):
        for package, script in (("python3-maypole", "postinst"), ("python3-maypole", "prerm"),
                                *[("maypole-" + name, script) for name in ("coordinator", "worker")
                                  for script in ("postinst", "prerm", "postrm")]):
            text = self.control(package, script)
            self.assertTrue(text.startswith("#!/bin/sh\nset -e\n"), (package, script))
            self.assertNotRegex(text, "@[A-Z]+@")
            subprocess.run(["sh", "-n"], input=text, text=True, check=True)
        for script in ("preinst", "postinst", "prerm", "postrm"):
            self.assertIsNone(self.control("maypole", script))

    def test_flags_of_the_services_are_known(self):
        for daemon in ("coordinator", "worker"):
            with open(self.path("/usr/lib/systemd/system/maypole-%s.service" % daemon), encoding="utf-8") as f:
                unit = f.read()
            (command,) = re.findall(r"^ExecStart=/usr/bin/(\S+) (.*)$", unit, re.M)
            self.assertEqual(command[0], "maypole-" + daemon)
            self.assertIn(" --flagfile=/etc/maypole/%s.conf" % daemon, command[1])
            # With --help the flags are read, and nothing is started.
            flags = command[1].replace("/etc/maypole", self.path("/etc/maypole")).split()
            self.assertIn("Options:", self.run_program(command[0], *flags, "--help"))


if __name__ == "__main__":
    unittest.main()
