"""The texts that shell scripts write to standard error, by `echo "..." >&2` or `fail "..."`."""

import re

from text import HOLE, Text, printable

_WRITTEN = re.compile(r'\b(?P<call>echo|fail) (?P<strings>"(?:[^"\\]|\\.)*"(?:[\s\\]+"(?:[^"\\]|\\.)*")*)(?P<end>[^\n]*)')


def texts(path, source):
    """The Texts of a script, in its order."""
    found = []
    source = re.sub(r"\$\((?:[^()\n]|\([^()\n]*\))*\)", HOLE, source)
    for m in _WRITTEN.finditer(source):
        if m.group("call") == "echo" and ">&2" not in m.group("end"):
            continue
        text = " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', m.group("strings")))
        text = re.sub(r"\$(?:\{[^{}]*\}|\w+|\*)", HOLE, text)
        found.append(Text(path, source.count("\n", 0, m.start()) + 1, m.group("call"), printable(text)))
    return found
