"""A log that nobody can flood: so many lines a minute about each subject, then one that counts the rest."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass


@dataclass
class _Subject:
    began: float = float("-inf")
    written: int = 0
    left_out: int = 0


class SparingLog:
    """Subjects are few, such as the members' names: what strangers do must not hide what a member does."""

    def __init__(self, log: logging.Logger, lines: int, seconds: float = 60.0) -> None:
        self.log, self.lines, self.seconds = log, lines, seconds
        self._subjects: dict[str, _Subject] = {}

    def warning(self, subject: str, text: str) -> None:
        about, now = self._subjects.setdefault(subject, _Subject()), time.monotonic()
        if now - about.began >= self.seconds:
            if about.left_out:
                self.log.warning("%s: %s more lines were left out", subject, about.left_out)
            about.began, about.written, about.left_out = now, 0, 0
        if about.written >= self.lines:
            about.left_out += 1
            return
        about.written += 1
        self.log.warning("%s", printable(f"{subject}: {text}"))


def printable(text: str) -> str:
    """Without line ends and control characters, which could forge a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
