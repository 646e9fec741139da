"""Which texts of the sources a user, an operator or a developer may have to read as a message, and the rules that
assign each one to an entry of docs/troubleshooting.md."""

import fnmatch
import functools
import os
import re
from typing import List, NamedTuple

import cpp_texts
import python_texts
import shell_texts
from text import is_prose

# (folder, ending, how its texts are found): the programs, the libraries, the Python package, and what builds them.
_SOURCES = (
    ("client", ".cc", cpp_texts), ("client", ".h", cpp_texts), ("common", ".cc", cpp_texts), ("common", ".h", cpp_texts),
    ("coordinator", ".cc", cpp_texts), ("coordinator", ".h", cpp_texts), ("worker", ".cc", cpp_texts),
    ("worker", ".h", cpp_texts), ("client/python", ".py", python_texts), ("tools/packages", ".py", python_texts),
    ("tools/programs", ".cc", cpp_texts), ("tools/programs", ".c", cpp_texts),
    ("deploy", ".sh", shell_texts),
)
_FOR_TESTS = re.compile(r"(^|/)(tests|testing)/|_test\.(cc|py)$|_testing\.(cc|h)$")


def sources(root):
    """(path, content, module that finds its texts) of each source file below `root`."""
    for folder, ending, reader in _SOURCES:
        for directory, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                path = os.path.relpath(os.path.join(directory, name), root)
                if name.endswith(ending) and not _FOR_TESTS.search(path):
                    with open(os.path.join(root, path), encoding="utf-8") as f:
                        yield path, f.read(), reader


def texts(root):
    """All Texts below `root` that are prose, by path and line."""
    return [text for path, content, reader in sources(root) for text in reader.texts(path, content) if is_prose(text.text)]


@functools.lru_cache(maxsize=None)  # fnmatch's own forgets
def _glob(pattern):
    return re.compile(fnmatch.translate(pattern or "*"))


class Rule(NamedTuple):
    """Chooses texts: the whole text, a fragment of it, its call, or its file and perhaps its call (globs).

    Of several rules that choose a text the first kind of these counts; of one kind, the longest fragment or file.
    """

    whole: str
    fragment: str
    file: str
    call: str

    def chooses(self, text):
        if self.whole:
            return self.whole == text.text
        if self.fragment:
            return self.fragment in text.text
        return bool(_glob(self.file).match(text.path) and _glob(self.call).match(text.call))

    def rank(self):
        return bool(self.whole), bool(self.fragment), not self.file, len(self.fragment or self.file), bool(self.call)

    def __str__(self):
        if self.whole or self.fragment:
            return "= " + self.whole if self.whole else self.fragment
        return " ".join("%s: %s" % field for field in (("file", self.file), ("call", self.call)) if field[1])


def parse_rule(line):
    """`= TEXT`, `file: GLOB`, `call: GLOB`, `file: GLOB call: GLOB`, or else a fragment of the text."""
    if line.startswith("= "):
        return Rule(line[2:], "", "", "")
    m = re.fullmatch(r"(?:file: (?P<file>\S+))? ?(?:call: (?P<call>\S+))?", line)
    if m:
        return Rule("", "", m.group("file") or "", m.group("call") or "")
    return Rule("", line, "", "")


def assign(found, rules: List[Rule]):
    """({rule: its texts}, texts that no rule chooses)."""
    chosen, left = {rule: [] for rule in rules}, []
    by_rank = sorted(rules, key=Rule.rank, reverse=True)
    for text in found:
        rule = next((rule for rule in by_rank if rule.chooses(text)), None)
        if rule is None:
            left.append(text)
        else:
            chosen[rule].append(text)
    return chosen, left
