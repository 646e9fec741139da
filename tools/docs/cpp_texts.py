"""The texts that C++ sources put together from string literals.

Not a parser of C++: tokens, brackets, and what stands between commas. That is enough, because texts are made by
literals that follow each other, by `+`, by `?:`, and by the functions in _JOINING.
"""

import re

from text import BRACES, HOLE, PRINTF, Text, choice, has_letters, printable, without_formats

_TOKEN = re.compile(r'''
  (?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*)
 |R"(?P<mark>[^()\s\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"
 |(?P<string>"(?:[^"\\\n]|\\.)*")
 |(?P<char>'(?:[^'\\\n]|\\.)*')
 |(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
 |(?P<number>\d(?:'?[\w.])*)
 |(?P<other>->|<<|>>|&&|\|\||[=!<>+\-*/]=|\S)
''', re.X | re.S | re.M)

# Their arguments are parts of one text (`bad` is what functions that check one thing after the other call theirs).
_JOINING = {"absl::StrCat", "absl::StrAppend", "absl::StrFormat", "std::string", "std::string_view", "bad"}
# So are theirs, and rules may name them.
_MAKING = {"InvalidArgument"}
_PRINTF = {"absl::StrFormat", "fprintf", "std::fprintf", "snprintf", "printf"}
_KEYWORDS = {"return", "if", "while", "for", "switch", "case", "co_return", "throw"}
_ESCAPES = {"n": "\n", "t": " ", "r": "", "\\": "\\", '"': '"', "'": "'"}


class _Group:
    """What stands in a pair of brackets. call: the name before it."""

    def __init__(self, bracket, call, line):
        self.bracket, self.call, self.line, self.items = bracket, call, line, []


class _Token:
    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line

    def __eq__(self, other):
        return self.kind == "other" and self.text == other


def _unescaped(literal):
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(0)), literal[1:-1])


def _tokens(source):
    line, at = 1, 0
    for m in _TOKEN.finditer(source):
        line += source.count("\n", at, m.start())
        at = m.start()
        if m.group("raw") is not None:
            yield _Token("string", m.group("raw"), line)
        elif m.group("string") or m.group("char"):
            yield _Token("string", _unescaped(m.group("string") or m.group("char")), line)
        elif not m.group("skip"):
            kind = "name" if m.group("name") else "other"
            yield _Token(kind, m.group(0), line)


def _groups(source):
    """The whole source as a group of tokens and groups."""
    stack = [_Group("", "", 1)]
    for token in _tokens(source):
        items = stack[-1].items
        before = items[-1] if items and isinstance(items[-1], _Token) else None
        if token.kind == "other" and token.text in "([{":
            call = ""
            if token.text != "[" and before and before.kind == "name" and before.text not in _KEYWORDS:
                call = items.pop().text
            elif before and before == ">":
                call = "<>"  # of a function with template arguments
            group = _Group(token.text, call, token.line)
            items.append(group)
            stack.append(group)
        elif token.kind == "other" and token.text in ")]}":
            if len(stack) > 1:
                stack.pop()
        elif token.kind == "string" and before and before.kind == "string":
            before.text += token.text
        else:
            items.append(token)
    return stack[0]


def _split(items, separators):
    parts = [[]]
    for item in items:
        if isinstance(item, _Token) and item.kind == "other" and item.text in separators:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def _value(items):
    """What is behind the last `=`, `return` or block of a statement."""
    begin = 0
    for i, item in enumerate(items):
        if isinstance(item, _Token) and (item == "=" or item == "+=" or item.kind == "name" and item.text in
                                         ("return", "co_return")):
            begin = i + 1
        elif isinstance(item, _Group) and item.bracket == "{":
            begin = i + 1  # a function's or a block's body
        elif isinstance(item, _Token) and item == "?":
            break
    return items[begin:]


def _joins(group):
    return isinstance(group, _Group) and group.bracket == "(" and (group.call in _JOINING or not group.call)


def _rendered(items):
    """The text of an expression, with HOLE for everything but literals."""
    items = _value(items)
    for i, item in enumerate(items):
        if isinstance(item, _Token) and item == "?":
            depth = 0
            for j in range(i + 1, len(items)):
                if isinstance(items[j], _Token):
                    depth += (items[j] == "?") - (items[j] == ":")
                    if depth < 0:
                        return choice(_rendered(items[i + 1:j]), _rendered(items[j + 1:]))
            break
    return "".join(_part(part) for part in _split(items, ("+", "<<")))


def _part(items):
    return "".join(_item(item) for item in items)


def _item(item):
    if isinstance(item, _Token):
        return item.text if item.kind == "string" else HOLE
    if not _joins(item):
        return HOLE
    text = "".join(_rendered(argument) for argument in _split(item.items, (",",)))
    return without_formats(text, PRINTF) if item.call in _PRINTF else text


def _collect(group, path, found):
    if group.call in _MAKING:
        text = "".join(_rendered(argument) for argument in _split(group.items, (",",)))
        found.append(Text(path, group.line, group.call, printable(text)))
        return _collect_inside(group.items, path, found)
    for items in _split(group.items, (",", ";")):
        text = _rendered(items)
        if group.call in _PRINTF:
            text = without_formats(text, PRINTF)
        elif group.call.startswith("spdlog::"):
            text = without_formats(text, BRACES)
        if has_letters(text):
            found.append(Text(path, items[0].line, group.call, printable(text)))
        _collect_inside(items, path, found)


def _collect_inside(items, path, found):
    for item in items:
        if _joins(item):
            for argument in _split(item.items, (",",)):
                _collect_inside(argument, path, found)
        elif isinstance(item, _Group):
            _collect(item, path, found)


def literals(source):
    """All string literals; for a test that none is lost."""
    return [token.text for token in _tokens(source) if token.kind == "string"]


def texts(path, source):
    """The Texts of a source file, in its order."""
    found = []
    _collect(_groups(source), path, found)
    return found
