"""Privacy modes as values: each is parsed once, and has its defaults, limits and claim::

    Plain(clip)                                       the server sees each client's message
    SecAgg(min_cohort, decoys)                        the server sees only sums over `min_cohort` honest clients or more
    DP(epsilon, delta, rounds, rating_range)          a client's releases are noised, for each of its users
    DPSecAgg(epsilon, delta, rounds, ..., min_cohort) both

A mode contains no algorithm. `fedmc.training.aggregation` turns it into an Aggregation, and `Settings` picks the
algorithm that a noised mode needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from fedmc.errors import InputError, require, unknown
from fedmc.privacy.dp import bounds
from fedmc.privacy.dp.several import sentence
from fedmc.privacy.protocol import (
    ALL_TASKS,
    DEFAULT_ACTIVE,
    DP_ROUNDS,
    MIN_COHORT,
    MODES,
    ROUNDS,
    ModeName,
    Privacy,
    Setting,
    Word,
)  # fmt: skip
from fedmc.privacy.secagg.rules import SMALLEST_COHORT, colluders, promise
from fedmc.types import MAX_CLIENTS, number, whole


class Mode:
    """Defaults that most modes share."""

    algorithm: ClassVar[str | None] = None
    default_rounds: ClassVar[int] = ROUNDS
    tasks: ClassVar[frozenset[str]] = ALL_TASKS
    everybody_needed: ClassVar[bool] = False
    held_out_allowed: ClassVar[bool] = True
    failures_tell: ClassVar[bool] = True
    sees: ClassVar[str] = ""  # what the server sees, for tables
    saw: ClassVar[str] = ""  # what it saw of the updates, for a run's report

    @property
    def clips(self) -> bool:
        return False

    @property
    def adds_decoys(self) -> bool:
        return False

    def settings(self) -> Mapping[str, Setting]:
        return {}

    def default_active(self, clients: int) -> int:
        return min(clients, DEFAULT_ACTIVE)

    def promise(self, clients: int) -> str:
        return ""

    def summary(self) -> str:
        return self.sees

    def server_saw(self) -> str:
        return self.saw


@dataclass(frozen=True)
class Plain(Mode):
    """The server sees each client's message; `clip` bounds the influence of one client (0 switches it off)."""

    clip: float = 0.0
    mode: ClassVar[ModeName] = "plain"
    sees: ClassVar[str] = "nothing is hidden, the server sees the message of every client."
    saw: ClassVar[str] = "The server saw each client's own updates."
    failures_tell: ClassVar[bool] = False

    def __post_init__(self) -> None:
        clip = number("clip", self.clip, 0)
        require(clip == 0 or clip >= 1, f"clip must be 0 (off) or at least 1, got {clip}")

    def claim(self) -> str:
        return (
            "privacy plain: nothing is claimed, because the server sees each client's messages and can tell from them "
            "which items its users rated or had; ratings or events themselves, and user factors, stay with each client"
        )

    def check_run(self, clients: int, active: int, rounds: int | None, full: bool) -> None:
        """Every run is allowed."""

    def words(self) -> dict[str, Word]:
        return {"privacy": self.mode, "clip": self.clip}

    @property
    def clips(self) -> bool:
        return self.clip > 0


@dataclass(frozen=True)
class SecAgg(Mode):
    """Secure aggregation: the server sees only sums over cohorts of at least `min_cohort` honest clients."""

    min_cohort: int = MIN_COHORT
    decoys: float = 0.0  # the part of its empty rows in which a client adds a decoy
    mode: ClassVar[ModeName] = "secagg"
    sees: ClassVar[str] = "the server sees masked uploads and the sums of cohorts, never a client's own message."
    saw: ClassVar[str] = "The updates were masked: the server saw only their sums over cohorts."

    def __post_init__(self) -> None:
        check_cohort(self.min_cohort)
        require(number("decoys", self.decoys, 0) <= 1, f"decoys must be at most 1 (every row), got {self.decoys}")

    @property
    def adds_decoys(self) -> bool:
        return self.decoys > 0

    def claim(self) -> str:
        return (
            f"privacy secagg: the server sees sums, each over at least {self.min_cohort} honest clients, and no "
            "client's own message, even if one of four or more clients works together with it. Not hidden: what the "
            "sums and the model say about all clients together; of a client that misses a round, the items that "
            "nobody else in its group rated or had; and what a server finds out that sends item factors of its own "
            "choice. Only differential privacy bounds these"
        )

    def promise(self, clients: int) -> str:
        return promise(clients, self.min_cohort)

    def check_run(self, clients: int, active: int, rounds: int | None, full: bool) -> None:
        refuse_full(full, self.mode)
        check_cohort_fits(self.min_cohort, clients)

    def words(self) -> dict[str, Word]:
        said: dict[str, Word] = {"privacy": self.mode, "min_cohort": self.min_cohort}
        return said | {"decoys": self.decoys} if self.decoys else said  # unknown to earlier versions


@dataclass(frozen=True)
class DP(Mode):
    """(epsilon, delta)-differential privacy for each user of a client, over `rounds` rounds."""

    epsilon: float = 10.0
    delta: float = 1e-6
    rounds: int = DP_ROUNDS  # the budget is divided among them
    rating_range: tuple[float, float] = (1.0, 5.0)  # public: ratings are centred by it
    mode: ClassVar[ModeName] = "dp"
    sees: ClassVar[str] = "what leaves a client is noised for each of its users, within the epsilon that was set."
    saw: ClassVar[str] = (
        "Each client added noise to its updates for differential privacy; the server saw each client's noisy ones."
    )
    algorithm: ClassVar[str | None] = "dp"
    default_rounds: ClassVar[int] = DP_ROUNDS
    tasks: ClassVar[frozenset[str]] = frozenset({"round", "finish"})  # losses and errors would be releases too
    held_out_allowed: ClassVar[bool] = False
    noise_shared: ClassVar[bool] = False  # each client adds the full noise itself

    def __post_init__(self) -> None:
        checked = {
            "epsilon": bounds.check_epsilon_or_inf(self.epsilon), "delta": bounds.check_delta(self.delta),
            "rounds": bounds.check_rounds(self.rounds), "rating_range": bounds.check_range(self.rating_range),
        }  # fmt: skip
        for name, value in checked.items():  # plain numbers, which a request can hold
            object.__setattr__(self, name, value)

    def claim(self) -> str:
        noise = (
            "each client adds its share of the noise, which is enough if two thirds of the clients add theirs"
            if self.noise_shared
            else "each client adds all the noise itself"
        )
        return (
            f"privacy {self.mode}: what leaves a client is (epsilon {self.epsilon:g}, delta {self.delta:g})-"
            f"differentially private for each of its users, over {self.rounds} rounds; {noise}. "
            f"{sentence(self.epsilon, self.delta, self.noise_shared)}"
        )

    def settings(self) -> Mapping[str, Setting]:
        return {"penalty_users": "l2:2", "penalty_items": "none", "normalise": "none", "biases": True}

    def default_active(self, clients: int) -> int:
        return clients

    def check_run(self, clients: int, active: int, rounds: int | None, full: bool) -> None:
        require(
            rounds is None or rounds <= self.rounds,
            f"the privacy budget is divided among dp_rounds={self.rounds} rounds, {rounds} were asked for",
        )
        refuse_full(full, self.mode)
        require(
            active == clients,
            f"with privacy={self.mode!r} all {clients} clients take part in every round, active is {active}",
        )

    def words(self) -> dict[str, Word]:
        low, high = self.rating_range
        return {
            "privacy": self.mode, "epsilon": self.epsilon, "delta": self.delta, "dp_rounds": self.rounds,
            "ratings_from": low, "ratings_to": high,
        }  # fmt: skip


@dataclass(frozen=True)
class DPSecAgg(DP):
    """Differential privacy under secure aggregation: clients share the noise, and the server sees only sums."""

    mode: ClassVar[ModeName] = "dp+secagg"
    noise_shared: ClassVar[bool] = True
    everybody_needed: ClassVar[bool] = True  # each adds its share of the noise
    sees: ClassVar[str] = "the server sees masked uploads and noised sums; the noise is shared among the clients."
    saw: ClassVar[str] = "The updates were masked and noisy: the server saw only noisy sums over cohorts."
    min_cohort: int = MIN_COHORT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cohort(self.min_cohort)

    def promise(self, clients: int) -> str:
        return promise(clients, self.min_cohort)

    def check_run(self, clients: int, active: int, rounds: int | None, full: bool) -> None:
        super().check_run(clients, active, rounds, full)
        check_cohort_fits(self.min_cohort, clients)

    def words(self) -> dict[str, Word]:
        return super().words() | {"min_cohort": self.min_cohort}


BY_MODE: dict[str, type[Plain | SecAgg | DP | DPSecAgg]] = {kind.mode: kind for kind in (Plain, SecAgg, DP, DPSecAgg)}
FIELDS = {"dp_rounds": "rounds"}  # parameters whose field has another name
WORDS = ("clip", "min_cohort", "decoys", "epsilon", "delta", "dp_rounds", "rating_range", "ratings_from", "ratings_to")


def parse(mode: str, words: Mapping[str, object]) -> Privacy:
    """A mode from its name and parameters; parameters of other modes are ignored.

    The exception is `clip`: a server that sees only sums cannot clip, so the request is refused.
    """
    if mode not in BY_MODE:
        raise unknown("privacy", mode, MODES)
    kind = BY_MODE[mode]
    given = {FIELDS.get(name, name): value for name, value in words.items() if value is not None}
    low, high = given.pop("ratings_from", None), given.pop("ratings_to", None)
    if low is not None or high is not None:
        given.setdefault("rating_range", (_number("ratings_from", low, 1.0), _number("ratings_to", high, 5.0)))
    taken = {field.name for field in fields(kind)}
    if given.get("clip") and "clip" not in taken:
        raise InputError(f"with privacy={mode!r} the server cannot clip single clients: clip goes with privacy='plain'")
    return kind(**{name: value for name, value in given.items() if name in taken})  # type: ignore[arg-type]


def as_privacy(given: str | Privacy) -> Privacy:
    """The mode of this name, or the mode itself."""
    return parse(given, {}) if isinstance(given, str) else given


def describe(mode: str) -> str:
    """What the server sees under a mode, after the mode's name; an unknown mode is only named."""
    return f"privacy={mode}: {parse(mode, {}).summary()}" if mode in BY_MODE else f"privacy={mode}."


def changed(privacy: Privacy, words: Mapping[str, object]) -> Privacy:
    """The mode with these parameters changed; if they name another `privacy`, that mode."""
    return parse(str(words.get("privacy", privacy.mode)), {**privacy.words(), **words})


def default_for(organisations: int) -> ModeName:
    """The default mode of a federation with this number of organisations."""
    return "secagg" if organisations >= SMALLEST_COHORT else "plain"


def check_cohort(min_cohort: int) -> None:
    require(
        whole("min_cohort", min_cohort, 0, MAX_CLIENTS) >= SMALLEST_COHORT,
        f"min_cohort must be at least {SMALLEST_COHORT} (of two, each can subtract its own part), got {min_cohort}",
    )


def check_cohort_fits(min_cohort: int, clients: int) -> None:
    less = ", of whom 1 may work together with the server," if colluders(clients) else ""
    require(
        clients - colluders(clients) >= min_cohort,
        f"{clients} clients{less} are too few to hide among, min_cohort is {min_cohort}: lower it to say how many "
        "honest ones are enough, or use privacy='plain', which hides nothing",
    )


def refuse_full(full: bool, mode: str) -> None:
    require(not full, f"full diagnostics show more than sums: not with privacy={mode!r}")


def _number(name: str, value: object, default: float) -> float:
    try:
        return default if value is None else float(bounds.number(name, value))
    except OverflowError:
        raise InputError(f"{name} must be a number, got a larger one than there are") from None
