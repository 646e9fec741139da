"""The texts that Python sources put together from string literals; docstrings are none."""

import ast

from text import BRACES, HOLE, PRINTF, Text, choice, has_letters, printable, without_formats


def _is_format_call(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"


def _rendered(node):
    """The text of an expression, with HOLE for everything but literals."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(_rendered(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return _rendered(node.value) if isinstance(node.value, ast.IfExp) else HOLE
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _rendered(node.left) + _rendered(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return without_formats(_rendered(node.left), PRINTF).replace("%%", "%")
    if _is_format_call(node):
        return without_formats(_rendered(node.func.value), BRACES)
    if isinstance(node, ast.IfExp):
        return choice(_rendered(node.body), _rendered(node.orelse))
    return HOLE


def _holes(node):
    """The expressions in the holes of a text."""
    if isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _holes(value)
    elif isinstance(node, ast.FormattedValue):
        yield from _holes(node.value) if isinstance(node.value, ast.IfExp) else [node.value]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        yield from _holes(node.left)
        yield from _holes(node.right)
    elif isinstance(node, ast.IfExp):
        yield node.test
        yield from _holes(node.body)
        yield from _holes(node.orelse)
    elif _is_format_call(node):
        yield from _holes(node.func.value)
        yield from node.args
        yield from (keyword.value for keyword in node.keywords)
    elif not isinstance(node, ast.Constant):
        yield node


def _collect(node, call, path, found):
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)) or _is_format_call(node):
        text = _rendered(node)
        if has_letters(text):
            if call.endswith(("_log.info", "_log.warning", "_log.error")):
                text = without_formats(text, PRINTF)
            found.append(Text(path, node.lineno, call, printable(text)))
            node, holes = None, list(_holes(node))
            for hole in holes:
                _collect(hole, "", path, found)
    if node is not None:
        if not isinstance(node, ast.keyword):
            call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        for child in ast.iter_child_nodes(node):
            _collect(child, call, path, found)


def literals(source):
    """All string literals but docstrings; for a test that none is lost."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [node.value for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings]


def texts(path, source):
    """The Texts of a source file, in its order."""
    found = []
    _collect(ast.parse(source), "", path, found)
    return found
