"""What maypole.run() raises when its job fails."""

from typing import Optional


class RankError(RuntimeError):
    """A rank of maypole.run() failed; the text says which one, how, and where.

    Args:
        message: the error's text.
        rank: its number (in an elastic job, that of the process).
        traceback: of its exception, as text; empty if it raised none, for example because a signal killed it.
            The exception itself is __cause__, if it could be pickled there and unpickled here.
    """

    def __init__(self, message: str, rank: Optional[int] = None, traceback: str = ""):
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
