"""A log that nobody can flood: so many lines a minute, then one that counts the rest."""

from __future__ import annotations

import logging
import time


class SparingLog:
    def __init__(self, log: logging.Logger, lines: int = 20, seconds: float = 60.0) -> None:
        self.log, self.lines, self.seconds = log, lines, seconds
        self._began, self._written, self._left_out = float("-inf"), 0, 0

    def warning(self, text: str) -> None:
        now = time.monotonic()
        if now - self._began >= self.seconds:
            if self._left_out:
                self.log.warning("%s more lines like the above were left out", self._left_out)
            self._began, self._written, self._left_out = now, 0, 0
        if self._written >= self.lines:
            self._left_out += 1
            return
        self._written += 1
        self.log.warning("%s", printable(text))


def printable(text: str) -> str:
    """Without line ends and control characters, which could forge a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
