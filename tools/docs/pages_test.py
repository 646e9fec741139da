"""The pages of docs/: each is in the index, short enough, with links that lead somewhere, and in the words of docs/vocabulary.md."""

import os
import re
import sys
import unittest
from typing import NamedTuple

# Beside the sources themselves, not their copies of Bazel's: what is looked through is the whole tree.
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import messages  # noqa: E402
import troubleshooting  # noqa: E402

_GROUPS = ("Use", "Operate", "Understand", "Develop")
_MOST_LINES = 300
_MOST_LINES_OF_MESSAGES = 400  # of docs/troubleshooting/: to be searched, not read
_SOURCES = ("client", "common", "coordinator", "examples", "tests", "tools", "worker")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.M | re.S)
_CODE = re.compile(r"(`+)[^`].*?\1", re.S)
# Of a job's life, not of the training.
_EPOCH = re.compile(r"(?<!membership )\bepochs? (ends?|is over|was aborted|has ended|starts?|begins?|continues)\b|"
                    r"\b(ends?|aborts?|starts?) (the|an) epoch\b|\bjob's (next |last )?epoch\b|\bnext epoch\b")
_LINK = re.compile(r"\]\(([^)\s]*)\)")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def pages():
    """The names of docs/'s pages, without the index."""
    return sorted(name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md") and name != "README.md")


def prose():
    """The paths of all that users and developers read."""
    sources = os.listdir(os.path.join(ROOT, "docs", "troubleshooting.src"))
    return (["README.md", "CHANGELOG.md", "docs/README.md"] +
            ["docs/" + name for name in pages() if name not in ("troubleshooting.md", "vocabulary.md")] +
            ["docs/troubleshooting.src/" + name for name in sorted(sources) if name.endswith(".md")])


def code():
    """(path, content) of each source file."""
    for top in _SOURCES:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".cc", ".h", ".py")):
                    path = os.path.relpath(os.path.join(folder, name), ROOT)
                    yield path, read(path)


def without_code(page):
    """The page without fenced blocks, indented blocks and `code`; lines keep their numbers."""
    def blank(match):
        return "\n" * match.group(0).count("\n")
    page = _CODE.sub(blank, _FENCE.sub(blank, page))
    return re.sub(r"(?m)^ {4}(?! *([*\-]|\d+\.) ).*$", "", page)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"(?m)^#+ +(.*?)\s*$", _FENCE.sub("", page)):
        name = anchor = troubleshooting.slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        count = 0
        while anchor in found:
            count += 1
            anchor = "%s-%d" % (name, count)
        found.add(anchor)
    return found


def rows(section):
    """The cells of each row of a section's table, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    for line in lines[1:]:
        yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


class Retired(NamedTuple):
    word: str
    write: str
    pattern: "re.Pattern"
    in_prose: bool
    messages: int  # that may still have it; -1: not counted
    files: int  # of code, as `messages`


def section(page, heading):
    return page.split("\n## %s\n" % heading)[1].split("\n## ")[0]


def retired():
    for word, write, pattern, in_prose, *counts in rows(section(read("docs", "vocabulary.md"), "Retired words")):
        yield Retired(word, write, re.compile(pattern.strip("`")), in_prose == "no",
                      *(-1 if count == "-" else int(count) for count in counts))


class IndexTest(unittest.TestCase):
    def test_each_page_is_in_one_group_with_one_line(self):
        index = read("docs", "README.md")
        self.assertEqual(tuple(re.findall(r"(?m)^## (.*)$", index)), _GROUPS)
        listed = re.findall(r"(?m)^\| \[[^\]]+\]\(([\w.-]+\.md)\) \| [^|]{10,160} \|$", index)
        self.assertEqual(sorted(listed), pages())
        self.assertIn("(docs/README.md)", read("README.md"))

    def test_no_page_is_long(self):
        for name in pages():
            self.assertLessEqual(read("docs", name).count("\n"), _MOST_LINES, "docs/%s: cut it, or split it" % name)
        for name in os.listdir(os.path.join(ROOT, "docs", "troubleshooting")):
            self.assertLessEqual(read("docs", "troubleshooting", name).count("\n"), _MOST_LINES_OF_MESSAGES,
                                 "docs/troubleshooting/%s: split its source" % name)


class LinksTest(unittest.TestCase):
    def test_each_link_leads_somewhere(self):
        known, broken = {}, []
        count = 0
        made = ["docs/troubleshooting/" + name for name in os.listdir(os.path.join(ROOT, "docs", "troubleshooting"))]
        for page in ["README.md", "CHANGELOG.md", "docs/README.md"] + ["docs/" + name for name in pages()] + made:
            for target in _LINK.findall(_CODE.sub("", _FENCE.sub("", read(page)))):
                if re.match(r"\w+:", target):
                    continue
                path, _, anchor = target.partition("#")
                path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                count += 1
                if not os.path.exists(os.path.join(ROOT, path)):
                    broken.append("%s: no file %s" % (page, target))
                elif anchor and path.endswith(".md"):
                    if path not in known:
                        known[path] = anchors(read(path))
                    if anchor not in known[path]:
                        broken.append("%s: no heading %s" % (page, target))
        self.assertEqual(broken, [], "\n" + "\n".join(broken))
        self.assertGreater(count, 500)


class VocabularyTest(unittest.TestCase):
    def test_no_word_is_there_twice(self):
        words = [cells[0] for cells in rows(section(read("docs", "vocabulary.md"), "Words"))]
        self.assertGreater(len(words), 50)
        self.assertEqual(sorted(words), sorted(set(words)))
        gone = [r.word for r in retired()]
        self.assertEqual(sorted(gone), sorted(set(gone)))
        self.assertFalse(set(words) & set(gone))

    def test_no_page_has_a_retired_word(self):
        found = []
        words = [r for r in retired() if r.in_prose]
        for page in prose():
            lines = without_code(read(page)).split("\n")
            for r in words:
                if r.pattern.search("\n".join(lines)):
                    found += ["%s:%d: %r is retired, write %s: %s" % (page, n, r.word, r.write, line.strip()[:120])
                              for n, line in enumerate(lines, 1) if r.pattern.search(line)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_users_read_of_membership_epochs(self):
        """Else they take Maypole's epoch for the training's."""
        index = read("docs", "README.md")
        names = [name for group in ("Use", "Operate") for name in re.findall(r"\]\(([\w.-]+\.md)\)", section(index, group))]
        self.assertGreater(len(names), 25)
        paths = ["docs/" + name for name in names] + [path for path in prose() if "troubleshooting.src" in path]
        found = ["%s:%d: %s" % (path, n, line.strip()[:120]) for path in paths
                 for n, line in enumerate(without_code(read(path)).split("\n"), 1) if _EPOCH.search(line)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def check_ratchet(self, what, limits, texts):
        """texts: (name, text)"""
        texts = list(texts)
        self.assertGreater(len(texts), 500)
        for r in retired():
            limit = limits(r)
            if limit >= 0:
                have = [name for name, text in texts if r.pattern.search(text)]
                self.assertLessEqual(len(have), limit, "%r is retired, write %s: %s" % (r.word, r.write, have))
                if len(have) < limit:
                    print("docs/vocabulary.md: %r is in %d %s now, not in %d: lower it" % (r.word, len(have), what, limit))

    def test_code_has_them_less_and_less(self):
        """A ratchet: code that nobody touches may keep an old word, but no further file gets one.

        Renaming all of it at once would touch half of the files, and every branch under way. So the table has how many
        files still have the word. Whoever renames some lowers the number.
        """
        self.check_ratchet("files of code", lambda r: r.files, code())

    def test_messages_have_them_less_and_less(self):
        """As with code: a message is an interface, so the few that have an old word change when they change anyway."""
        texts = messages.texts(ROOT)
        self.check_ratchet("messages", lambda r: r.messages, (("%s:%d" % (t.path, t.line), t.text) for t in texts))


class PartsTest(unittest.TestCase):
    def test_code_is_no_prose(self):
        self.assertEqual(without_code("a `b c` d\n```\ne\n```\n    f\nend").split(), ["a", "d", "end"])

    def test_anchors(self):
        self.assertEqual(anchors("# A `b`: c, d\n## X\n```\n# no\n```\n## X\n"), {"a-b-c-d", "x", "x-1"})

    def test_rows_may_have_a_bar(self):
        self.assertEqual(list(rows("| a | b |\n|---|---|\n| `x\\|y` | z |\n")), [["`x|y`", "z"]])


if __name__ == "__main__":
    unittest.main()
