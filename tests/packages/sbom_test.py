"""The SBOM of a release is valid SPDX 2.3 according to PyPI's spdx-tools, and names what the packages contain."""

import json
import os
import shutil
import subprocess
import unittest
import zipfile

import environments
import installed
import sbom
import sdist

WHEN = 1790000000


class SbomTest(unittest.TestCase):
    def test_it_is_valid(self):
        python = environments.python("spdx")
        directory = installed.directory()
        self.addCleanup(shutil.rmtree, directory)
        wheel = installed.make_wheel(directory)
        installed.make_horovod_wheel(directory)
        sdist.make_sdist(directory, installed.ROOT)
        debs = installed.make_debs(directory, WHEN, level=0)
        made = sbom.document(directory, installed.ROOT)
        path = os.path.join(directory, made["name"] + ".spdx.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(made, f)
        done = subprocess.run([os.path.join(os.path.dirname(python), "pyspdxtools"), "--infile", path],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        names = {package["name"]: package for package in made["packages"] if "packageFileName" not in package}
        with zipfile.ZipFile(wheel) as archive:
            licenses = {os.path.basename(name) for name in archive.namelist() if ".dist-info/licenses/" in name}
        self.assertGreater(len(licenses), 10)
        self.assertEqual(set(names), licenses)
        for name, package in names.items():
            self.assertTrue(package.get("versionInfo"), name)
        self.assertEqual(len([package for package in made["packages"] if "packageFileName" in package]), 3 + len(debs))
        # The tool does notice what is wrong.
        made["packages"][0]["licenseDeclared"] = "no license"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(made, f)
        done = subprocess.run([os.path.join(os.path.dirname(python), "pyspdxtools"), "--infile", path],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
