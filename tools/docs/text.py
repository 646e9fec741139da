"""A text as a program puts it together: literal parts, and holes for what is filled in."""

import re
from typing import NamedTuple

HOLE = "\0"


class Text(NamedTuple):
    """text: with "…" for what is filled in, "(a|b)" for a choice, "[a]" for a part that may be absent.

    path, line: where it begins. call: the function (or the constructor of the exception) whose argument it is, or "".
    """

    path: str
    line: int
    call: str
    text: str


def choice(first, second):
    """The text of `condition ? first : second`."""
    first, second = first.strip(HOLE), second.strip(HOLE)
    if not has_letters(first + second):
        return HOLE
    if first and second:
        before = " " * (first[0] == second[0] == " ")
        after = " " * (first[-1] == second[-1] == " ")
        inner = "|".join(text[len(before):len(text) - len(after)] for text in (first, second))
        return "%s(%s)%s" % (before, inner, after)
    return "[%s]" % (first or second)


def has_letters(text):
    return re.search("[A-Za-z]", text) is not None


def is_prose(text):
    """Whether a person may have to read it: two words at least, with a space."""
    return " " in text.strip() and len(re.findall("[A-Za-z]{2,}", text)) >= 2


def printable(parts):
    """Joined parts as one line for the page."""
    text = re.sub(r"\s+", " ", re.sub(HOLE + "+", "…", parts)).strip()
    whole = re.fullmatch(r"\[([^\[\]]*)\]", text)
    return whole.group(1) if whole else text


def without_formats(text, pattern):
    """A format string with holes for its fields."""
    return re.sub(pattern, HOLE, text)


PRINTF = r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z]"
BRACES = r"\{[^{}]*\}"
