"""docs/horovod-compat.md claims what a test shows: each test that it names exists, and what it calls unread is unread."""

import os
import re
import unittest

# Beside the sources themselves, not their copies of Bazel's: what is looked through is the whole tree.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_SOURCES = ("client", "common", "coordinator", "worker")
_EXTENSIONS = (".cc", ".h", ".py", ".cu", ".proto")
# Of these tables a row without a test says so, or says that there is nothing.
_NOTHING = re.compile(r"^(not yet|absent|see above)")
_WITHOUT_TESTS = ("## Why not Horovod", "## Horovod's known pains", "### What Horovod tunes")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def rows(page):
    """(heading, cells) of each row of a table."""
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line
        elif line.startswith("| "):
            yield heading, [cell.strip() for cell in line.strip("| ").replace("\\|", "").split(" | ")]


class HorovodCompatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = read("docs", "horovod-compat.md")

    def test_each_test_is_there(self):
        labels = set(re.findall(r"`(//[\w/]+:\w+)`", self.page)) - {"//client/python/tests:X_test"}
        self.assertGreater(len(labels), 40)
        for package, name in sorted(label[2:].split(":") for label in labels):
            build = read(package, "BUILD.bazel")
            short = re.sub("^(short|all)_", "", name)
            self.assertTrue({name, short} & set(re.findall(r'"(\w+)"', build)), f"//{package}:{name}")
        units = read("client", "python", "tests", "BUILD.bazel")
        named = {label.rpartition(":")[2] for label in labels}
        for name in set(re.findall(r"`(\w+_test)`", self.page)) - named - {"X_test"}:
            self.assertTrue(f'"{name}"' in units or f'"{name}"' in read("tests", "frameworks", "BUILD.bazel")
                            or f'"{name}"' in read("client", "launcher", "BUILD.bazel"), name)

    def test_each_row_names_a_test(self):
        count = 0
        for heading, cells in rows(self.page):
            if heading in _WITHOUT_TESTS or set(cells[-1]) <= set("-|") or cells[-1] == "test":
                continue
            count += 1
            if not _NOTHING.match(cells[1]):
                self.assertEqual(len(cells), 3, (heading, cells))
                self.assertRegex(cells[2], r"`[\w/:.]+`", (heading, cells[0]))
        self.assertGreater(count, 70)

    def test_what_is_unread(self):
        unread = set()
        for heading, cells in rows(self.page):
            if heading == "## Environment variables" and cells[-1].startswith("`unread`"):
                unread.update(re.findall(r"(?<!the other )`(HOROVOD_[A-Z0-9_]+[A-Z])", cells[0]))
        self.assertGreater(len(unread), 15)
        pattern = re.compile(r"\b(%s)" % "|".join(sorted(unread)))
        for top in _SOURCES:
            for at, _, names in os.walk(os.path.join(ROOT, top)):
                for name in names:
                    if name.endswith(_EXTENSIONS) and "_test." not in name:
                        self.assertIsNone(pattern.search(read(at, name)), os.path.join(at, name))


if __name__ == "__main__":
    unittest.main()
