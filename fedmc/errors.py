"""The errors that fedmc raises.

A message names the value, the bound and the cure::

    FedmcError
    ├── InputError        a setting or an argument is out of bounds
    │   └── UnknownNameError  a name that is neither built in nor an installed plug-in's
    ├── DataError         ratings, or other stored data, that cannot be used as they are
    ├── ModelFileError    a model file that is damaged, of another kind or too new
    ├── Diverged          training diverged; carries the number of the round
    └── TooFewError       too few nodes took part in a round of a federation
        └── UnmeasuredError   a measurement without some of them would tell something about the others
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable

SHOWN = 80  # characters of a value that a message shows
LAYOUT = "\n\t"  # the control characters that fedmc's own texts use


class FedmcError(ValueError):
    """Base of every error that fedmc raises on purpose."""


class InputError(FedmcError):
    """A setting or an argument is out of bounds."""


class UnknownNameError(InputError):
    """A name that is neither built in nor an installed plug-in's."""


class DataError(FedmcError):
    """Ratings, or other stored data, that cannot be used as they are."""


class ModelFileError(FedmcError):
    """A model file that is damaged, of another kind or too new."""


class Diverged(FedmcError):  # noqa: N818
    """Training diverged: numbers are not finite, too large, or the objective grew far above its start."""

    def __init__(self, round: int, what: str, cure: str) -> None:
        super().__init__(f"training diverged in round {round}: {what}; {cure}")
        self.round, self._parts = round, (round, what, cure)

    def __reduce__(self) -> tuple[type[Diverged], tuple[int, str, str]]:
        return Diverged, self._parts  # between processes


class TooFewError(FedmcError):
    """Too few nodes took part in a round of a federation."""


class UnmeasuredError(TooFewError):
    """Not all nodes took part in a hidden measurement: without one of them, its difference to another would tell."""


def require(condition: bool, message: str | Callable[[], str], error: type[FedmcError] = InputError) -> None:
    """Raise `error(message)` unless `condition` holds; a function as message is called only on failure."""
    if not condition:
        raise error(message() if callable(message) else message)


def unknown(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not one of the known ones."""
    return UnknownNameError(f"unknown {kind} {quoted(name)}: choose one of {', '.join(known)}")


def quoted(value: object, most: int = SHOWN) -> str:
    """A value from outside as `repr` writes it: one line of printable characters, cut after `most` of them."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = most
    try:
        text = repr(value[: most + 1]) if isinstance(value, str) else short.repr(value)
    except Exception:  # a repr that fails, such as that of an integer with very many digits
        text = f"<{type(value).__name__}>"
    shown = printable(text)
    return shown if len(shown) <= most + 2 else f"{shown[:most]}..."


def printable(text: str, kept: str = "") -> str:
    """The text with every character that a log or terminal could act on written as an escape, except those `kept`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)


def reason(error: Exception) -> str:
    """Why something from outside was refused: the text of one of fedmc's own errors; of any other, quoted."""
    return str(error) if isinstance(error, FedmcError) else f"{type(error).__name__}: {quoted(str(error))}"
