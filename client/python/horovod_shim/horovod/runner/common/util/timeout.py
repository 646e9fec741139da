"""A time limit, for Settings(start_timeout=...)."""

import time


class Timeout:
    """timeout: seconds from now. message: of the error, with the place {timeout} for these seconds."""

    def __init__(self, timeout: float, message: str):
        self._timeout = timeout
        self._ends = time.time() + timeout
        self._message = message

    def remaining(self) -> float:
        """Seconds until the limit; 0 after it."""
        return max(0.0, self._ends - time.time())

    def timed_out(self) -> bool:
        """Whether the limit is over."""
        return time.time() > self._ends

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutError with the message after the limit. activity: what has taken too long."""
        if self.timed_out():
            raise TimeoutError(f"{self._message.replace('{timeout}', format(self._timeout, 'g'))} ({activity})")
