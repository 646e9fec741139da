"""Imported first: from here on `import maypole` fails, as if Maypole were not installed."""

import sys

sys.modules["maypole"] = None


def check():
    """Raises AssertionError if anything of Maypole is in this process."""
    assert [name for name, module in sys.modules.items() if name.startswith("maypole.") and module] == []
    with open("/proc/self/maps", encoding="utf-8") as f:
        assert "libmaypole" not in f.read()
