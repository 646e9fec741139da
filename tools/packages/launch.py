#!python
"""Runs the program of this file's name that the package maypole has."""

import os
import sys

# Under this name maypolerun runs scripts that import horovod.
ALIASES = {"horovodrun": "maypolerun"}


def packages():
    """Where the package may be: beside this file's bin directory, then where Python looks."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    python = "python%d.%d" % sys.version_info[:2]
    for kind in ("site-packages", "dist-packages"):
        yield os.path.join(prefix, "lib", python, kind)
        yield os.path.join(prefix, "lib64", python, kind)
    yield prefix  # pip install --target
    yield from sys.path


def main():
    name = os.path.basename(__file__)
    for directory in packages():
        program = os.path.join(directory, "maypole", "bin", ALIASES.get(name, name))
        if os.path.isfile(program):
            os.execv(program, [name] + sys.argv[1:])
    sys.exit("%s: the package maypole, which has this program, is not where %s looks: install it again there" %
             (name, sys.executable))


if __name__ == "__main__":
    main()
