#!/usr/bin/env python3
"""Changes the version of Maypole, and says when it was released.

usage: tools/packages/version.py NEW                  begins version NEW, for example 0.2.0
       tools/packages/version.py --released [DATE]    the version is released on this day (YYYY-MM-DD, default: today)
       tools/packages/version.py                      prints the version; status 1 if not all files have it

common/version.h has the version: programs, libraries and packages take it from there. This program writes it to all
other places: recipes, and texts in which users read names of packages or what programs print (_PLACES). Beginning a
version begins its section in CHANGELOG.md.
"""

import datetime
import glob
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import metadata  # noqa: E402

HEADER = "common/version.h"
CHANGELOG = "CHANGELOG.md"
# Files that name the version, as patterns. Of deploy/, only those that do now are looked at by stale().
_PLACES = ("README.md", "docs/*.md", "deploy/**")
_LMOD = "deploy/lmod/maypole/%s.lua"  # Lmod takes the version from the file's name
# Each has the version at least once: a recipe that lost its own would be forgotten otherwise.
RECIPES = ("deploy/apptainer/maypole.def", "deploy/conda/recipe/meta.yaml", "deploy/docker/Dockerfile",
           "deploy/helm/maypole/Chart.yaml", "deploy/kubernetes/coordinator.yaml", "deploy/spack/packages/maypole/package.py",
           "docs/install.md")
_SECTION = r"^## \[%s\] - (\S+)$"
_UNRELEASED = "unreleased"
# In README.md and docs/status.md.
_STATE = r"(ersion %s(?:, which)?) (?:is not released yet|was released on \d{4}-\d\d-\d\d)"
STATED = ("README.md", "docs/status.md")


def _exactly(version):
    """A pattern of the version, not of a longer number with it."""
    return r"(?<![\d.])%s(?!\d|\.\d)" % re.escape(version)


def _write(path, text, root):
    with open(os.path.join(root, path), "w", encoding="utf-8") as f:
        f.write(text)


def _files(root):
    found = {path for pattern in _PLACES for path in glob.glob(os.path.join(root, pattern), recursive=True)}
    return sorted(os.path.relpath(path, root) for path in found if os.path.isfile(path) and not path.endswith(".pyc"))


def begin(new, root=metadata.ROOT):
    """Replaces the version everywhere; returns the paths of the files that have changed."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", new):
        raise ValueError("a version is three numbers, such as 0.2.0, not %s" % new)
    old = metadata.version(root)
    if new == old:
        raise ValueError("the version is %s already" % new)
    changed = []
    for path in [HEADER] + _files(root):
        text = metadata.read(path, root)
        # The state first, while it names the old version.
        now = re.sub(_STATE % re.escape(old), r"\1 is not released yet", text) if path in STATED else text
        now = re.sub(_exactly(old), new, now)
        if now != text:
            _write(path, now, root)
            changed.append(path)
    os.rename(os.path.join(root, _LMOD % old), os.path.join(root, _LMOD % new))
    text = metadata.read(CHANGELOG, root)
    section = "## [%s] - %s\n\n" % (new, _UNRELEASED)
    _write(CHANGELOG, re.sub(r"^## ", lambda m: section + m.group(0), text, count=1, flags=re.M), root)
    return changed + [CHANGELOG, _LMOD % new]


def release_date(root=metadata.ROOT):
    """The day that CHANGELOG.md gives for the version; None if it is not released. ValueError without a section."""
    version = metadata.version(root)
    found = re.search(_SECTION % re.escape(version), metadata.read(CHANGELOG, root), re.M)
    if found is None:
        raise ValueError("%s has no section for %s" % (CHANGELOG, version))
    return None if found.group(1) == _UNRELEASED else found.group(1)


def released(date, root=metadata.ROOT):
    """Writes the day of the release to CHANGELOG.md and where it is stated."""
    datetime.date.fromisoformat(date)
    version = re.escape(metadata.version(root))
    release_date(root)
    for path, pattern, text in ((CHANGELOG, _SECTION % version, "## [%s] - %s" % (metadata.version(root), date)),
                                *((path, _STATE % version, r"\1 was released on " + date) for path in STATED)):
        _write(path, re.sub(pattern, text, metadata.read(path, root), count=1, flags=re.M), root)


def disagreements(root=metadata.ROOT):
    """What does not fit together: lines."""
    version = metadata.version(root)
    lines = ["%s does not name version %s" % (path, version) for path in RECIPES
             if not re.search(_exactly(version), metadata.read(path, root))]
    modules = [os.path.basename(path) for path in glob.glob(os.path.join(root, _LMOD % "*"))]
    if modules != [version + ".lua"]:
        lines.append("deploy/lmod/maypole has %s, not only %s.lua" % (", ".join(modules), version))
    try:
        date = release_date(root)
    except ValueError as error:
        return lines + [str(error)]
    state = "is not released yet" if date is None else "was released on " + date
    for path in STATED:
        if not re.search(r"ersion %s(, which)? %s" % (re.escape(version), state), metadata.read(path, root)):
            lines.append('%s does not say of version %s that it %s, as %s does' % (path, version, state, CHANGELOG))
    return lines


def main(argv):
    try:
        if argv[:1] == ["--released"] and len(argv) <= 2:
            released(argv[1] if len(argv) == 2 else datetime.datetime.now(datetime.timezone.utc).date().isoformat())
        elif len(argv) == 1 and not argv[0].startswith("-"):
            for path in begin(argv[0]):
                print(path)
        elif argv:
            sys.exit(__doc__.partition("\n\n")[2].partition("\n\n")[0])
        else:
            print(metadata.version())
            lines = disagreements()
            for line in lines:
                print("version: " + line, file=sys.stderr)
            return 1 if lines else 0
    except ValueError as error:
        sys.exit("version: %s" % error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
