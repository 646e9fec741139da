"""Keys of jobs. Maypole makes its own; see docs/security.md."""

import os


def make_secret_key() -> bytes:
    """32 random bytes."""
    return os.urandom(32)
