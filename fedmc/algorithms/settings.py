"""Settings: every choice of a run in one frozen record. `Settings.preset` makes one with the defaults of `presets`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from fedmc.algorithms import limits, presets, registry
from fedmc.algorithms.presets import PRESETS
from fedmc.errors import InputError, quoted, require, unknown
from fedmc.privacy import modes
from fedmc.privacy.modes import Plain
from fedmc.privacy.protocol import Privacy
from fedmc.problem import losses, penalties
from fedmc.problem.losses import Loss
from fedmc.problem.penalties import Fixed, Penalty, Scalable, none

if TYPE_CHECKING:  # avoids a cycle: the protocols import Settings
    from fedmc.algorithms.protocol import Algorithm, Sampler

PLAIN = Plain()
AUTO_START = 10.0  # where the search for penalty_users="auto" begins
Preset = Literal["bayes", "fast", "paper", "implicit"]
Normalise = Literal["none", "mean", "standard"]
DType = Literal["float32", "float64"]
Feedback = Literal["explicit", "implicit"]
OF_SOME = {"empty_rounds": "server-step", "update_users": "drawn"}
"""Settings that only some algorithms have (`Algorithm.own_settings`), and their defaults."""


@dataclass(frozen=True)
class Settings:
    """A run's settings; make them with `Settings.preset(name, ...)`, which fills in defaults."""

    rank: int = 10
    preset_name: str = "custom"
    algorithm: str | Algorithm = "linearised"  # a name (`registry.names()`), or an object of your own
    loss: str | Loss = "square"
    penalty_users: str | Penalty = "none"  # "auto": an l2 weight that training chooses on held-out ratings
    penalty_items: str | Penalty = "none"  # "auto": the users' penalty over p, as if all users were pooled
    beta: float | Literal["auto"] = 1.0  # "auto": one for each item and coordinate, from start-up sums
    beta_scale: float = 2.0  # the constant c of beta="auto"
    inner_steps: int = 10
    passes: bool = False  # each inner step is a pass over the ratings, as in the paper's cost: same iterates, slower
    fit_users_to: Literal["W", "V"] = "W"
    dual_step: float = 1.0
    extrapolation: float = 0.0  # of "curvature": how far U is extrapolated from the client's last update
    entry_penalty: float = 1.0  # of "curvature": the share of the users' penalty that holds at a client's first update
    normalise: Normalise = "none"
    biases: bool = False
    start: Literal["uniform", "normal"] = "uniform"
    start_scale: float = 1.0  # a factor of the first U and V
    entry: Literal["all", "first-turn"] = "all"
    implicit: bool = False  # of "bayes": prior means from who rated what
    ranking: bool = False  # of ratings: also measure how what was held out is ranked; models of events always are
    fold_in: bool = False  # refit U to the global V before measuring and at the end
    sampler: str | Sampler = "uniform"
    active: int = 1
    privacy: Privacy = PLAIN
    empty_rounds: Literal["server-step", "skip"] = "server-step"  # what the server does if nobody takes part
    update_users: Literal["drawn", "all"] = "drawn"  # of "fedmavg": whose U is updated in a round
    seed: int = 0
    dtype: DType = "float64"

    @classmethod
    def preset(cls, name: str = "bayes", **given: object) -> Settings:
        """The preset's settings, overridden by those that are given and not None.

        Settings that the Bayesian model does not have choose the preset "fast" instead of "bayes", which is logged.

        `algorithm`, or the older `method` and `update`, names the algorithm. The parameters of a privacy mode are given
        beside it: `privacy="secagg", min_cohort=5`.
        """
        if name not in PRESETS:
            raise unknown("preset", name, PRESETS)
        words = {key: value for key, value in given.items() if value is not None}
        registry.check_one(words)
        words["privacy"] = _privacy(words, Plain())
        name = presets.fitting(name, words)
        _fit_to_domain(words)
        chosen = PRESETS[name] | dict(cast(Privacy, words["privacy"]).settings()) | words
        candidates = registry.named(chosen, words)
        return _first_that_fits(cls, candidates, chosen | {"preset_name": name}, words.keys())

    @classmethod
    def from_dict(cls, words: Mapping[str, object]) -> Settings:
        """Settings from the output of `to_dict`, also of earlier versions (`method` and `update` for `algorithm`)."""
        known = dict(words)
        known["privacy"] = _privacy(known, Plain())
        algorithm = registry.named(known, known)[-1]
        known = {name: value for name, value in known.items() if name not in ("method", "update")}
        return cls(**(known | {"algorithm": algorithm}))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        self._to_plain_numbers()
        limits.check(vars(self))
        self._check_parts()

    def _to_plain_numbers(self) -> None:
        """Convert numpy scalars to Python's, which a model file can hold."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, f.name, value.item())

    def _check_parts(self) -> None:
        drawing = isinstance(self.sampler, str) or hasattr(self.sampler, "draw")
        require(drawing, lambda: f"a sampler must have draw and probabilities, got {quoted(self.sampler)}")
        self.penalties(clients=1)
        if hasattr(self.make_loss(), "domain"):
            require(
                self.normalise == "none", f"the loss {self.loss} takes ratings as they are: normalise must be 'none'"
            )
        needed, algorithm = self.privacy.algorithm, self.make_algorithm()
        require(
            needed is None or algorithm.name == needed,
            f"privacy={self.privacy.mode!r} needs algorithm={needed!r}, which it chooses by itself; got {algorithm}",
        )
        require(
            algorithm.cumulative or not self.privacy.clips,
            f"clip needs an algorithm with a running sum ({', '.join(registry.UPDATES)}): what is cut off an update "
            f"must come with the next one. {algorithm} has none",
        )
        require(
            algorithm.takes_decoys or not self.privacy.adds_decoys,
            f"decoys need algorithm='curvature', 'exact' or 'bayes', got {algorithm}: leave decoys out",
        )
        require(
            not self.implicit or algorithm.uses_side,
            f"implicit=True needs algorithm='bayes', got {algorithm}: leave it out",
        )
        always = "models of events are always measured by their ranking: leave out ranking=True"
        require(not (self.ranking and algorithm.of_events), always)
        for name in OF_SOME.keys() - algorithm.own_settings:
            require(getattr(self, name) == OF_SOME[name], lambda name=name: _no_meaning(name, algorithm.name))  # type: ignore[misc]
        algorithm.check(self)

    @property
    def names_algorithm(self) -> bool:
        """Whether the algorithm is given by name, not as an object."""
        return registry.is_name(self.algorithm)

    @property
    def needs_tuning(self) -> bool:
        """Whether the users' penalty is still to be chosen (`training.tuning`)."""
        return isinstance(self.penalty_users, str) and self.penalty_users == "auto"

    @property
    def width(self) -> int:
        """Columns of U and V: the rank, and with biases [u, 1, b_user] and [v, b_item, 1]."""
        return self.rank + 2 * self.biases

    @cached_property
    def _parsed(self) -> tuple[Loss, Penalty, Penalty | None]:
        """Loss, users' penalty and items' penalty (None: the users' over p), parsed once."""
        loss = losses.parse(self.loss) if isinstance(self.loss, str) else self.loss
        losses.check(loss)
        users: Penalty = penalties.l2(AUTO_START) if self.needs_tuning else _penalty(self.penalty_users)
        auto = isinstance(self.penalty_items, str) and self.penalty_items == "auto"
        if auto and not isinstance(users, Scalable):
            raise InputError(
                "penalty_items='auto' scales the users' penalty, which cannot be scaled: give penalty_items"
            )
        return loss, users, None if auto else _penalty(self.penalty_items)

    @cached_property
    def _algorithm(self) -> Algorithm:
        return registry.resolve(self.algorithm)

    def make_algorithm(self) -> Algorithm:
        """The algorithm: an object that serves all runs."""
        return self._algorithm

    def make_loss(self) -> Loss:
        return self._parsed[0]

    def penalties(self, clients: int) -> tuple[Penalty, Penalty]:
        """The penalties R_i of the users and R of the items; with biases, the columns of ones are fixed."""
        if clients not in self._made:
            self._made[clients] = self._make_penalties(clients)
        return self._made[clients]

    @cached_property
    def _made(self) -> dict[int, tuple[Penalty, Penalty]]:
        return {}

    def _make_penalties(self, clients: int) -> tuple[Penalty, Penalty]:
        users, items = self._parsed[1], self._items(clients)
        if not self.biases:
            return users, items
        return Fixed((self.rank,), (1.0,), users), Fixed((self.rank + 1,), (1.0,), items)

    def _items(self, clients: int) -> Penalty:
        _, users, items = self._parsed
        if items is not None:
            return items
        assert isinstance(users, Scalable)
        return users * (1 / clients)

    def with_objective(self, penalty_users: str | Penalty | None, loss: str | Loss | None, clients: int) -> Settings:
        """These settings with a client's own penalty of its users, or loss; the items' penalty stays as it is."""
        users = self.penalty_users if penalty_users is None else penalty_users
        own = self.loss if loss is None else loss
        return replace(self, penalty_users=users, loss=own, penalty_items=self._items(clients))

    @cached_property
    def penalty_at_entry(self) -> Penalty:
        """The users' penalty at a client's first update; a penalty that cannot be scaled is used unchanged."""
        users = self.penalties(1)[0]
        if isinstance(self._parsed[1], Scalable) and isinstance(users, Scalable):
            return users * self.entry_penalty
        return users

    @cached_property
    def penalty_of_copies(self) -> Penalty:
        """The penalty of a client's W: none (the server applies R), but with biases the column of ones is fixed."""
        return Fixed((self.rank + 1,), (1.0,)) if self.biases else none()

    def to_dict(self) -> dict[str, str | int | float]:
        """The settings as plain values: penalties and losses by their spec, a user's own object by its str."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("privacy", "algorithm")}
        for name, usual in {"implicit": False, "ranking": False, "start_scale": 1.0, **OF_SOME}.items():
            if plain[name] == usual:
                del plain[name]  # unknown to earlier versions, whose runs and nodes go on
        known = plain | {"algorithm": str(self.make_algorithm())} | self.privacy.words()
        return {key: value if isinstance(value, str | int | float) else str(value) for key, value in known.items()}

    def replace(self, **changes: object) -> Settings:
        """A copy with these changes; also takes a privacy mode by name with its parameters, `method` and `update`."""
        words = dict(changes)
        registry.check_one(words)
        words["privacy"] = _privacy(words, self.privacy)
        if words.keys() & {"algorithm", "method", "update"}:
            words["algorithm"] = registry.named({"algorithm": self.algorithm} | words, words)[-1]
        kept = {name: value for name, value in words.items() if name not in ("method", "update")}
        return replace(self, **kept)  # type: ignore[arg-type]


def _privacy(words: dict[str, object], before: Privacy) -> Privacy:
    """The privacy mode that `words` describe; removes the mode's parameters from `words`."""
    given = words.pop("privacy", None)
    numbers = {name: words.pop(name) for name in modes.WORDS if name in words}
    if given is None or isinstance(given, str):
        return modes.changed(before, numbers | ({} if given is None else {"privacy": given}))
    return cast(Privacy, given)


def _fit_to_domain(words: dict[str, object]) -> None:
    """Default to no normalisation for a loss with a domain, which centred ratings would leave."""
    given = words.get("loss", "square")
    if hasattr(losses.parse(given) if isinstance(given, str) else given, "domain"):
        words.setdefault("normalise", "none")


def _first_that_fits(
    kind: type[Settings], candidates: tuple[object, ...], chosen: dict[str, object], given: object
) -> Settings:
    """Settings with the first algorithm that accepts them; if none does, the last one's error is raised."""
    kept = {name: value for name, value in chosen.items() if name not in ("method", "update")}
    asked = set(cast(Mapping[str, object], given))
    for last, candidate in ((one is candidates[-1], one) for one in candidates):
        algorithm = registry.resolve(candidate)
        unused = sorted(asked & (algorithm.unused_settings | (OF_SOME.keys() - algorithm.own_settings)))
        if unused and not last:
            continue
        require(not unused, lambda names=unused, by=algorithm.name: _no_meaning(names[0], by))  # type: ignore[misc]
        implicit = kept.get("implicit", False) if "implicit" in asked or algorithm.uses_side else False
        try:
            return kind(**(kept | {"algorithm": candidate, "implicit": implicit}))  # type: ignore[arg-type]
        except InputError:
            if last:
                raise
    raise AssertionError


def _no_meaning(name: str, algorithm: str) -> str:
    return f"{name} has no meaning with algorithm={algorithm!r}: leave it out, or choose another algorithm"


def _penalty(given: object) -> Penalty:
    penalty = penalties.parse(given) if isinstance(given, str) else given
    if not (hasattr(penalty, "value") and hasattr(penalty, "prox")):
        raise InputError(f"a penalty needs the methods value and prox, got {type(penalty).__name__}")
    return cast(Penalty, penalty)
