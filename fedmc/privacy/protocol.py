"""The interface of a privacy mode. The modes themselves are in `modes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, get_args

from fedmc.errors import InputError, quoted

ModeName = Literal["plain", "secagg", "dp", "dp+secagg"]
MODES: tuple[str, ...] = get_args(ModeName)
MIN_COHORT = 8  # honest members of a cohort, by default: docs/explanation/privacy.md
DP_ROUNDS = 19  # more rounds mean more noise in each, fewer find no factors: docs/explanation/differential-privacy.md
DEFAULT_ACTIVE = 10
ROUNDS = 50
ALL_TASKS = frozenset({"moments", "scale", "pattern", "start", "round", "measure", "finish"})
Setting = str | float | bool
Word = Setting | tuple[float, float]


class Privacy(Protocol):
    """What the rest of the code uses of a mode."""

    mode: ClassVar[ModeName]
    algorithm: ClassVar[str | None]  # the name of the only algorithm that this mode runs with, or None
    default_rounds: ClassVar[int]
    tasks: ClassVar[frozenset[str]]  # tasks that a server may ask a node for
    everybody_needed: ClassVar[bool]  # the cohort must contain all clients
    held_out_allowed: ClassVar[bool]  # False: the choice of held-out ratings depends on other users
    failures_tell: ClassVar[bool]  # a failure may depend on the ratings: it ends the node's run, so that it leaks once

    @property
    def clips(self) -> bool:
        """Whether updates are clipped, so that the rest of an update must come with the next one."""
        ...

    @property
    def adds_decoys(self) -> bool:
        """Whether clients add decoys to rows that they would leave empty, so that the algorithm must know how."""
        ...

    def claim(self) -> str:
        """The privacy claim of a run, as a sentence that is shown before it begins."""
        ...

    def promise(self, clients: int) -> str:
        """What the claim means for so many clients, as a sentence; empty if it does not depend on their number."""
        ...

    def summary(self) -> str:
        """What the server sees, as a short text for tables and reports."""
        ...

    def server_saw(self) -> str:
        """What the server saw of the clients' updates in a run, as a sentence for its report."""
        ...

    def settings(self) -> Mapping[str, Setting]:
        """Defaults of other settings that this mode needs."""
        ...

    def default_active(self, clients: int) -> int:
        """The default number of clients per round."""
        ...

    def check_run(self, clients: int, active: int, rounds: int | None, full: bool) -> None:
        """Refuse a run that this mode cannot protect."""
        ...

    def words(self) -> dict[str, Word]:
        """The mode's name and parameters, as they are written to files and sent to nodes."""
        ...


def check_kind(given: object) -> None:
    """Refuse what is neither a mode nor the name of one."""
    if not (isinstance(given, str) or hasattr(given, "mode")):
        raise InputError(f"privacy must be a mode or a name, got {quoted(given)}: the default is 'plain'")
