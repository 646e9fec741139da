"""The names of a process group's operations.

torch.distributed matches operations by the order of the calls, Maypole by their names. So names follow from the order,
equally on all ranks. A name that comes again with the same tensor is several times faster than a new one
(docs/schedule.md); so a program that repeats its calls, as each training does, gets the names of the calls before.
"""

from collections.abc import Hashable

# Names of calls that repeat nothing are used again after this many.
NAMES = 1024
# Between two calls of a name are at least this many, which may be under way at once.
LEAST_DISTANCE = 64
# The signatures by which earlier calls are found.
_CONTEXT = 8
_MOST_SIGNATURES = 4096


class Names:
    """Numbers below NAMES, which stand for names.

    The number of a call depends on the signatures of the calls before it, not on its own: ranks that differ in a call
    for the first time give it the same number, so that the library sees the mismatch.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._fresh = 0
        # Of the last NAMES calls, by their count modulo NAMES.
        self._signatures = [-1] * NAMES
        self._numbers = [-1] * NAMES
        self._known: dict[Hashable, int] = {}  # what stands for a signature
        self._context = 0  # the last _CONTEXT of these
        self._seen: dict[int, int] = {}  # by context: the last call that ended it
        self._period = 0  # 0: none
        self._equal = 0  # how many of the last calls had the signature of the one a period before

    def next(self, signature: Hashable) -> int:
        """The number of the next call.

        Args:
            signature: the call's signature; in a correct program, equal on all ranks.
        """
        call, period = self._calls, self._period
        distance = -(-LEAST_DISTANCE // period) * period if period else NAMES
        if self._equal >= distance:
            number = self._numbers[(call - distance) % NAMES]
        else:
            number = self._fresh
            self._fresh = (number + 1) % NAMES
        if len(self._known) >= _MOST_SIGNATURES or len(self._seen) >= _MOST_SIGNATURES:
            self._known, self._seen, self._period, self._equal = {}, {}, 0, 0
        known = self._known.setdefault(signature, len(self._known))
        self._numbers[call % NAMES] = number
        self._signatures[call % NAMES] = known
        self._context = (self._context << 12 | known) & ((1 << 12 * _CONTEXT) - 1)
        if period and self._signatures[(call - period) % NAMES] == known:
            self._equal += 1
        else:
            period = call - self._seen.get(self._context, call)
            self._period, self._equal = (period if period <= NAMES // 2 else 0), 0
        self._seen[self._context] = call
        self._calls += 1
        return number
