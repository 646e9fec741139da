"""When ranks compare again what they train: after 2, 4, 8, ... steps, at last after each MOST_STEPS.

    recurrence = Recurrence()
    recurrence.until_next -= 1          # in each step
    if recurrence.until_next <= 0:      # due
        ...
        recurrence.follow(grows=True)   # the ranks were equal

So what goes wrong at once is found at once, and what is right costs little.

Thread contract: one thread at a time.
"""

MOST_STEPS = 1000  # between two comparisons


class Recurrence:
    """See the head of this file.

    until_next: the steps until the next one that is due, which the caller counts down. interval: the steps between the
    last one that was due and the next one.
    """

    def __init__(self) -> None:
        self.until_next = self.interval = 1

    def forget(self) -> None:
        """Begins again: the next step is due."""
        self.until_next = self.interval = 1

    def expect_now(self) -> None:
        """Makes this step due."""
        self.interval -= max(self.until_next - 1, 0)
        self.until_next = 1

    def follow(self, grows: bool) -> int:
        """Returns until_next after a step that was due: twice as far away as that one was if `grows`, otherwise 1."""
        self.until_next = self.interval = min(2 * self.interval, MOST_STEPS) if grows else 1
        return self.until_next
