"""Settings: every choice of a run in one frozen record, and the two presets that fill it in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedmc.algorithms import methods
from fedmc.algorithms.methods import Method
from fedmc.errors import InputError, require, unknown
from fedmc.problem import losses, penalties
from fedmc.problem.losses import Loss
from fedmc.problem.penalties import Fixed, Penalty, none
from fedmc.training import sampling
from fedmc.training.sampling import Sampler

MOST_FACTORS = 10_000
AUTO_START = 10.0  # where the search for penalty_users="auto" begins
PAPER: dict[str, Any] = dict(
    penalty_users="l2:1e-6", penalty_items="l2:1e-6", beta=0.3, update="linearised", fit_users_to="W", dual_step=1.0,
    normalise="none", biases=False, start="uniform", entry="all", fold_in=False, sampler="uniform",
    extrapolation=0.0, entry_penalty=1.0,
)  # fmt: skip
FAST: dict[str, Any] = dict(
    penalty_users="l2:10", penalty_items="auto", beta="auto", update="curvature", fit_users_to="V", dual_step=1.5,
    normalise="standard", biases=True, start="normal", entry="first-turn", fold_in=True, sampler="passes",
    extrapolation=0.5, entry_penalty=0.3,
)  # fmt: skip
PRESETS = {"paper": PAPER, "fast": FAST}
DP_ROUNDS = 19  # each is noisier the more there are, and factors are not found in few
DP: dict[str, Any] = dict(penalty_users="l2:2", penalty_items="none", normalise="none", biases=True)
PRIVACY = ("plain", "secagg", "dp", "dp+secagg")


@dataclass(frozen=True)
class Settings:
    """A run's settings; make them with `Settings.preset(name, ...)`, which fills in what is not given."""

    rank: int = 10
    preset_name: str = "custom"
    method: str | Method = "fedmc"  # or one of `methods`, which reads of this record what it knows
    loss: str | Loss = "square"
    penalty_users: str | Penalty = "none"  # "auto": an l2 weight that training chooses on held-out ratings
    penalty_items: str | Penalty = "none"  # "auto": the users' penalty over p, as if all users were pooled
    beta: float | Literal["auto"] = 1.0  # "auto": one per item and coordinate, from start-up sums
    beta_scale: float = 2.0  # the constant c of beta="auto"
    inner_steps: int = 10
    passes: bool = False  # each inner step by a pass over the ratings, as the paper counts it: same iterates, slower
    update: Literal["linearised", "exact", "curvature"] = "linearised"  # W, and U too where fit_users_to is "V"
    fit_users_to: Literal["W", "V"] = "W"
    dual_step: float = 1.0
    extrapolation: float = 0.0  # with "curvature": how far U goes on from the client's last turn
    entry_penalty: float = 1.0  # with "curvature": the share of the users' penalty that holds at a client's first turn
    normalise: Literal["none", "mean", "standard"] = "none"
    biases: bool = False
    start: Literal["uniform", "normal"] = "uniform"
    entry: Literal["all", "first-turn"] = "all"
    fold_in: bool = False  # refit U to the global V before measuring and at the end
    sampler: str | Sampler = "uniform"
    active: int = 1
    privacy: Literal["plain", "secagg", "dp", "dp+secagg"] = "plain"  # what the server sees: docs/privacy.md
    epsilon: float = 10.0  # with "dp": for each user, over all rounds
    delta: float = 1e-6
    dp_rounds: int = DP_ROUNDS  # that the budget is divided among
    ratings_from: float = 1.0  # with "dp": the public range of ratings
    ratings_to: float = 5.0
    clip: float = 0.0  # in "plain": a client's change counts up to so many times the median one; 0: all of it
    min_cohort: int = 10  # with "secagg": a client hides among at least so many, and newcomers among as many newcomers
    seed: int = 0
    dtype: str = "float64"

    @classmethod
    def preset(cls, name: str = "fast", **given: Any) -> Settings:
        """The preset's settings with those that are given (and not None) in their place."""
        if name not in PRESETS:
            raise unknown("preset", name, PRESETS)
        given = {key: value for key, value in given.items() if value is not None}
        if hasattr(losses.parse(given["loss"]) if isinstance(given.get("loss"), str) else given.get("loss"), "domain"):
            given.setdefault("normalise", "none")  # centred ratings would leave the loss's domain
        if str(given.get("privacy", "")).startswith("dp"):
            given = DP | given
        chosen = {**PRESETS[name], **given}
        if given.get("update") == "curvature" and "beta" in given:
            raise InputError("beta has no meaning with update='curvature': leave it out, or use update='exact'")
        if chosen["update"] == "curvature" and "update" not in given and not _knows_its_curvature(given, chosen):
            chosen["update"] = "exact"
        return cls(preset_name=name, **chosen)

    def __post_init__(self) -> None:
        self._to_plain_numbers()
        require(self.rank >= 1, f"rank must be at least 1, got {self.rank}")
        require(self.rank <= MOST_FACTORS, f"rank must be at most {MOST_FACTORS}, got {self.rank}")
        require(self.inner_steps >= 1, f"inner_steps must be at least 1, got {self.inner_steps}")
        if self.beta != "auto":
            ok = isinstance(self.beta, int | float) and math.isfinite(self.beta) and self.beta > 0
            require(ok, f"beta must be a finite number above 0 or 'auto', got {self.beta!r}")
        require(self.beta_scale > 0, f"beta_scale must be above 0, got {self.beta_scale}")
        require(0 < self.dual_step < 2, f"dual_step must lie between 0 and 2, got {self.dual_step}")
        require(0 <= self.extrapolation < 1, f"extrapolation must be at least 0 and below 1, got {self.extrapolation}")
        require(0 < self.entry_penalty <= 1, f"entry_penalty must be above 0 and at most 1, got {self.entry_penalty}")
        require(self.dtype in ("float32", "float64"), f"dtype must be float32 or float64, got {self.dtype!r}")
        require(self.clip == 0 or 1 <= self.clip < math.inf, f"clip must be 0 (off) or at least 1, got {self.clip}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        require(
            self.min_cohort >= 3, f"min_cohort must be at least 3 (of two, each sees the other), got {self.min_cohort}"
        )
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown(name, getattr(self, name), allowed)
        self._check_parts()

    def _to_plain_numbers(self) -> None:
        """numpy's numbers and bools to Python's, which a model file can hold."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, f.name, value.item())

    def _check_parts(self) -> None:
        self.penalties(clients=1)
        if not isinstance(self.make_method(), Method | None):
            raise InputError(f"a method needs turn and gather, got {type(self.method).__name__}")
        if hasattr(self.make_loss(), "domain"):
            require(
                self.normalise == "none", f"the loss {self.loss} takes ratings as they are: normalise must be 'none'"
            )
        square = isinstance(self.make_loss(), losses.Square)
        if self.preset_name == "paper" and self.update == "exact":
            require(square, f"the exact W update needs the square loss, got {self.loss}: use the linearised one")
        if self._check_privacy():
            return
        if self.update == "curvature":
            items = penalties.coefficients(self.penalties(1)[1], self.width)
            require(square, f"update='curvature' needs the square loss, got {self.loss}: use update='exact'")
            require(items is not None, "update='curvature' needs a separable penalty of the items: use update='exact'")
        elif self.beta == "auto":
            separable = penalties.coefficients(self.penalties(1)[1], self.width) is not None
            require(separable, "beta='auto' needs a separable penalty of the items: set beta, or penalty_items='none'")

    def _check_privacy(self) -> bool:
        """Refuse what does not go together; True where a method other than FedMC runs."""
        if self.private:
            require(self.method == "fedmc", f"privacy={self.privacy!r} goes with method='fedmc', not {self.method}")
            require(not self.clip, "clip goes with privacy='plain'")
            require(
                self.normalise == "none",
                "with privacy='dp' ratings are centred by their public range: normalise='none'",
            )
            self.make_method().check(self)  # type: ignore[union-attr]
            return True
        if self.make_method() is not None:
            require(self.privacy == "plain", f"privacy={self.privacy!r} goes with method='fedmc', not {self.method}")
            require(not self.clip, f"clip goes with method='fedmc', not {self.method}")
            return True
        if self.privacy != "plain":
            require(not self.clip, "a server that sees sums only cannot clip single clients: clip goes with 'plain'")
        return False

    @property
    def undecided(self) -> bool:
        """The penalty is still to be chosen (`tuning`)."""
        return isinstance(self.penalty_users, str) and self.penalty_users == "auto"

    @property
    def width(self) -> int:
        """Columns of U and V: the rank, and with biases [u, 1, b_user] and [v, b_item, 1]."""
        return self.rank + 2 * self.biases

    @cached_property
    def _parsed(self) -> tuple[Loss, Any, Any]:
        """Loss, users' penalty and items' penalty (None: the users' over p), made of their words once."""
        loss = losses.parse(self.loss) if isinstance(self.loss, str) else self.loss
        users = penalties.l2(AUTO_START) if self.undecided else _penalty(self.penalty_users)
        auto = isinstance(self.penalty_items, str) and self.penalty_items == "auto"
        if auto and not hasattr(users, "__mul__"):
            raise InputError(
                "penalty_items='auto' scales the users' penalty, which cannot be scaled: give penalty_items"
            )
        return loss, users, None if auto else _penalty(self.penalty_items)

    @property
    def hidden(self) -> bool:
        """The server sees sums over cohorts only."""
        return "secagg" in self.privacy

    @property
    def private(self) -> bool:
        """What leaves a client is noised, for each of its users."""
        return self.privacy.startswith("dp")

    @cached_property
    def _method(self) -> Method | None:
        if self.private:
            from fedmc.algorithms.private import Private

            scale = self.ratings_from, self.ratings_to
            return Private(self.epsilon, self.delta, self.dp_rounds, *scale, hidden=self.hidden)
        return methods.parse(self.method) if isinstance(self.method, str) else self.method

    def make_method(self) -> Method | None:
        """What runs instead of FedMC, if anything."""
        return self._method

    def make_loss(self) -> Loss:
        return self._parsed[0]

    def make_sampler(self, clients: int) -> Sampler:
        if isinstance(self.sampler, str):
            return sampling.parse(self.sampler, self.active, clients)
        return self.sampler

    def penalties(self, clients: int) -> tuple[Penalty, Penalty]:
        """The penalties R_i of the users and R of the items, with the bias columns fixed where there are any."""
        if clients not in self._made:
            self._made[clients] = self._make_penalties(clients)
        return self._made[clients]

    @cached_property
    def _made(self) -> dict[int, tuple[Penalty, Penalty]]:
        return {}

    def _make_penalties(self, clients: int) -> tuple[Penalty, Penalty]:
        _, users, items = self._parsed
        if items is None:
            items = users * (1 / clients)
        if not self.biases:
            return users, items
        return Fixed((self.rank,), (1.0,), users), Fixed((self.rank + 1,), (1.0,), items)

    @cached_property
    def penalty_at_entry(self) -> Penalty:
        """The users' penalty at a client's first turn; one that cannot be scaled holds in full."""
        users: Any = self.penalties(1)[0]
        scaled: Penalty = users * self.entry_penalty if hasattr(self._parsed[1], "__mul__") else users
        return scaled

    @cached_property
    def penalty_of_copies(self) -> Penalty:
        """A client's W carries none (R is the server's), but with biases its column of ones is fixed too."""
        return Fixed((self.rank + 1,), (1.0,)) if self.biases else none()

    def to_dict(self) -> dict[str, Any]:
        """Plain values only: penalties and losses in words, an object of the user's own as its str."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value if isinstance(value, str | int | float) else str(value) for key, value in plain.items()}

    def replace(self, **changes: Any) -> Settings:
        return replace(self, **changes)


_CHOICES: dict[str, tuple[str, ...]] = {
    "update": ("linearised", "exact", "curvature"),
    "fit_users_to": ("W", "V"),
    "normalise": ("none", "mean", "standard"),
    "start": ("uniform", "normal"),
    "entry": ("all", "first-turn"),
    "privacy": PRIVACY,
}


def _knows_its_curvature(given: dict[str, Any], chosen: dict[str, Any]) -> bool:
    """Square loss, a separable penalty of the items, and nothing asked for that only FedMC-ADMM has."""
    if given.keys() & {"beta", "beta_scale", "dual_step"}:
        return False
    loss = chosen.get("loss", "square")
    items = chosen["penalty_users"] if chosen["penalty_items"] == "auto" else chosen["penalty_items"]
    items = "l2:1" if isinstance(items, str) and items == "auto" else items  # whatever it will be
    square = isinstance(losses.parse(loss) if isinstance(loss, str) else loss, losses.Square)
    return square and hasattr(_penalty(items), "coefficients")


def _penalty(given: Any) -> Any:
    penalty = penalties.parse(given) if isinstance(given, str) else given
    if not (hasattr(penalty, "value") and hasattr(penalty, "prox")):
        raise InputError(f"a penalty needs the methods value and prox, got {type(penalty).__name__}")
    return penalty
