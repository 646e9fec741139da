"""Finds Maypole's programs."""

import os
import shutil
from collections.abc import Mapping


def find_program(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The path of a program ("maypolerun"): in MAYPOLE_BIN, beside the package or its library, or on PATH.

    Raises FileNotFoundError if it is in none of these.
    """
    directory = environ.get("MAYPOLE_BIN")
    if directory:
        candidates = [directory]
    else:
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        # A wheel has it in the package, a source tree beside the library.
        library = os.path.dirname(environ.get("MAYPOLE_LIBRARY", ""))
        candidates = [os.path.join(package, "bin"), os.path.join(library, "..", "bin"),
                      *environ.get("PATH", os.defpath).split(os.pathsep)]
    for candidate in candidates:
        path = shutil.which(name, path=candidate or os.curdir)
        if path:
            return os.path.abspath(path)
    where = f"in {directory} (MAYPOLE_BIN)" if directory else "beside the package maypole, nor on PATH"
    raise FileNotFoundError(f"there is no program {name} {where}: put Maypole's programs on PATH, or set "
                            "MAYPOLE_BIN to their directory")
