"""Prints, as a JSON list, where the board on stdin violates Grafana's schema.

The schema is taken from the classes that Grafana's developers generate from it (grafana-foundation-sdk). These classes
read any board; so this program compares the board's values with the types of the classes, and what the classes write
with what they have read: they leave out fields that they do not know.
"""

import enum
import json
import sys
import typing

from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard


def fits(value, hint):
    """Whether a value, apart from what is in it, is of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is not None:
        return isinstance(value, origin)
    if hint is typing.Any or not isinstance(hint, type):
        return True
    if issubclass(hint, enum.Enum):
        return value in [each.value for each in hint]
    if hint in (int, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def misfits(value, at=""):
    """Places of values that are not of their class' types."""
    if isinstance(value, (list, dict)):
        each = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, inner in each for place in misfits(inner, "%s/%s" % (at, key))]
    if not type(value).__module__.startswith("grafana_foundation_sdk") or isinstance(value, enum.Enum):
        return []
    found = []
    hints = typing.get_type_hints(type(value))
    for name, inner in vars(value).items():
        place = "%s/%s" % (at, name)
        found += misfits(inner, place) if fits(inner, hints.get(name, typing.Any)) else [place]
    return found


def lost(given, returned, at=""):
    """Places of what is in `given` and not, or other, in `returned`."""
    if isinstance(given, dict) and isinstance(returned, dict):
        return [place for key, value in given.items() for place in lost(value, returned.get(key, "absent"), at + "/" + key)]
    if isinstance(given, list) and isinstance(returned, list) and len(given) == len(returned):
        return [place for i, value in enumerate(given) for place in lost(value, returned[i], "%s/%d" % (at, i))]
    return [] if given == returned else [at]


def main():
    plugins.register_default_plugins()
    board = json.load(sys.stdin)
    read = dashboard.Dashboard.from_json(board)
    written = json.loads(json.dumps(read, cls=encoder.JSONEncoder))
    print(json.dumps(misfits(read) + lost(board, written)))


if __name__ == "__main__":
    main()
