"""Writes the ranks' output to the caller's streams, prefixed with their numbers. One thread."""

import codecs
import sys
import time
from typing import Any, Optional


class Output:
    """Writes whole lines of each process to the two streams; None: sys.stdout, sys.stderr."""

    def __init__(self, stdout: Any, stderr: Any, timestamps: bool):
        self._streams = {
            "stdout": stdout if stdout is not None else sys.stdout,
            "stderr": stderr if stderr is not None else sys.stderr
        }
        self._timestamps = timestamps
        self._parts: dict[tuple[int, str], tuple[Any, str]] = {}  # decoder and unfinished line

    def write(self, number: int, name: str, data: bytes, final: bool = False) -> None:
        """name: "stdout" or "stderr". final: this stream has ended."""
        decoder, rest = self._parts.pop((number, name), (None, ""))
        decoder = decoder or codecs.getincrementaldecoder("utf-8")(errors="replace")
        *lines, rest = (rest + decoder.decode(data, final=final)).split("\n")
        if final and rest:
            lines.append(rest)
        if not final:
            self._parts[number, name] = (decoder, rest)
        if not lines:
            return
        now = time.strftime("%a %b %e %H:%M:%S %Y") if self._timestamps else ""
        stream = self._streams[name]
        stream.write("".join(f"{now}[{number}]<{name}>:{line}\n" for line in lines))
        stream.flush()

    def end(self, number: Optional[int]) -> None:
        """The process has ended: writes its last lines, even without a newline."""
        for key in [key for key in self._parts if key[0] == number]:
            self.write(*key, b"", final=True)
