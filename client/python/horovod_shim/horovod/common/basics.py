"""HorovodBasics: the job's functions and the reductions, as attributes."""

from typing import Any

from maypole.common import basics as _basics
from maypole.common import constants as _constants
from maypole.common import timeline as _timeline


class HorovodBasics:
    """init, rank, size, ..., Average, Sum, ...; Maypole has no extension module,
    so the path is not used."""

    def __init__(self, pkg_path: str = "", *args: str):
        del pkg_path, args

    def __getattr__(self, name: str) -> Any:
        for module in (_basics, _constants, _timeline):
            if not name.startswith("_") and hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"HorovodBasics has no attribute {name!r}")
