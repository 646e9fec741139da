"""One version: common/version.h's; tools/packages/version.py changes it everywhere."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import installed
import metadata
import version

# The tree itself: texts and recipes that Bazel does not know.
SOURCES = installed.source_tree()


class VersionTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.root)
        for name in ("deploy", "docs"):
            shutil.copytree(os.path.join(SOURCES, name), os.path.join(self.root, name), symlinks=True)
        for name in (version.HEADER, version.CHANGELOG, "README.md"):
            os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
            shutil.copy(os.path.join(SOURCES, name), os.path.join(self.root, name))
        self.old = metadata.version(self.root)

    def replace(self, path, old, new):
        text = metadata.read(path, self.root)
        self.assertIn(old, text)
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))

    def naming_the_old_one(self):
        """The files in which the old version is left."""
        found = subprocess.run(["grep", "-rlE", r"(^|[^0-9.])%s([^0-9.]|\.[^0-9]|\.?$)" % re.escape(self.old), "."],
                               cwd=self.root, stdout=subprocess.PIPE, text=True, check=False).stdout
        return sorted(os.path.normpath(path) for path in found.split())

    def test_all_files_agree(self):
        self.assertEqual(version.disagreements(SOURCES), [])

    def test_a_new_version_is_one_command(self):
        left = [path for path in self.naming_the_old_one() if path.startswith("docs/") and not path.endswith(".md")]
        changed = version.begin("7.8.9", self.root)
        self.assertEqual(metadata.version(self.root), "7.8.9")
        self.assertIn("deploy/helm/maypole/Chart.yaml", changed)
        self.assertTrue(os.path.exists(os.path.join(self.root, "deploy/lmod/maypole/7.8.9.lua")))
        self.assertEqual(version.disagreements(self.root), [])
        # What was measured with a version, and what has changed since one, stay.
        self.assertEqual(self.naming_the_old_one(), sorted([version.CHANGELOG, *left]))
        changelog = metadata.read(version.CHANGELOG, self.root)
        self.assertLess(changelog.index("## [7.8.9] - unreleased\n"), changelog.index("## [%s] - " % self.old))
        self.assertIn("ersion 7.8.9 is not released yet", metadata.read("README.md", self.root))

    def test_a_release_and_the_next_version(self):
        version.released("2030-01-02", self.root)
        self.assertEqual(version.release_date(self.root), "2030-01-02")
        self.assertEqual(version.disagreements(self.root), [])
        self.assertIn("ersion %s, which was released on 2030-01-02" % self.old, metadata.read("docs/status.md", self.root))
        version.begin("7.8.9", self.root)
        self.assertIsNone(version.release_date(self.root))
        self.assertEqual(version.disagreements(self.root), [])
        self.assertIn("## [%s] - 2030-01-02\n" % self.old, metadata.read(version.CHANGELOG, self.root))

    def test_what_disagrees_is_named(self):
        self.replace("deploy/conda/recipe/meta.yaml", self.old, "0.0.7")
        self.replace("docs/status.md", "is not released yet", "was released on 2030-01-02")
        (module,) = glob.glob(self.root + "/deploy/lmod/maypole/*.lua")
        os.rename(module, self.root + "/deploy/lmod/maypole/0.0.7.lua")
        self.assertEqual(version.disagreements(self.root), [
            "deploy/conda/recipe/meta.yaml does not name version " + self.old,
            "deploy/lmod/maypole has 0.0.7.lua, not only %s.lua" % self.old,
            "docs/status.md does not say of version %s that it is not released yet, as CHANGELOG.md does" % self.old])

    def test_longer_numbers_stay(self):
        self.replace("README.md", "# Maypole", "# Maypole 1%s %s.4 %s.\n" % (self.old, self.old, self.old))
        version.begin("7.8.9", self.root)
        self.assertIn("# Maypole 1%s %s.4 7.8.9.\n" % (self.old, self.old), metadata.read("README.md", self.root))

    def test_no_version(self):
        for new, error in (("7.8", "three numbers"), ("7.8.9rc1", "three numbers"), (self.old, "already")):
            with self.assertRaisesRegex(ValueError, error):
                version.begin(new, self.root)
        self.assertEqual(version.disagreements(self.root), [])


if __name__ == "__main__":
    unittest.main()
