"""A fitted model: predict with intervals, recommend, fold in new users, complete a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse, special

from fedmc.algorithms.bayes_client import with_ones
from fedmc.algorithms.messages import Broadcast, Shared
from fedmc.algorithms.posterior import Posterior, fit_at_home, free_part
from fedmc.algorithms.settings import Settings
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError, require
from fedmc.model import describing, event_effects, explain, files, priors, recommending
from fedmc.model import titles as texts
from fedmc.model.explain import Case, Effect, Id, Names
from fedmc.model.ids import Unknown, find_ids, later_onto_catalogue, onto_catalogue
from fedmc.model.of_items import OfItems
from fedmc.problem.ranking import CUTOFFS, Ranking
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from fedmc.types import MAX_SEED, Array, whole

CAUTION = 0.9  # a cautious score is below the expected rating with this probability


class Interval(NamedTuple):
    """Predictions, and the ends of the intervals that hold the ratings with the probability that was asked for."""

    prediction: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Model(OfItems):
    """Item factors V, user factors U, their ids, the items each user has rated, and the scaling of ratings."""

    items: Array
    V: Array
    users: Array
    U: Array
    seen: sparse.csr_array  # pattern of the training ratings
    scaling: Scaling
    settings: Settings
    clients: int
    rating_range: tuple[float, float] | None = None  # of the training ratings: predictions are clipped to it
    posterior: Posterior | None = None  # of a Bayesian model
    titles: Array | None = None  # of the items, an empty string where it is not known; None: of none

    def __repr__(self) -> str:
        return f"Model({len(self.users):,} users x {len(self.items):,} items, rank {self.settings.rank})"

    def _repr_html_(self) -> str:
        return describing.html_of(self)

    @overload
    def predict(
        self, users: Any, items: Any, *, unknown: Unknown = "refuse", times: ArrayLike | None = None
    ) -> Array: ...
    @overload
    def predict(
        self, users: Any, items: Any, *, return_std: Literal[True], unknown: Unknown = "refuse",
        times: ArrayLike | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    def predict(
        self, users: Any, items: Any, *, return_std: bool = False, unknown: Unknown = "refuse",
        times: ArrayLike | None = None,
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """Predicted ratings of (user, item) pairs: two arrays of equal length, or one of them a single id.

        With `return_std` also the standard deviation of each rating around its prediction. An unknown id is an error
        or, with unknown="prior", predicted as a user or item without ratings. Both need a Bayesian model. `times`, in
        seconds since 1970, add the user's bias of that day, where the model knows one.
        """
        rows, columns = self._pairs(users, items, unknown)
        found = self._clipped(self._scores(rows, columns, times))
        return (found, self._std(rows, columns)) if return_std else found

    def interval(
        self, users: Any, items: Any, level: float = 0.9, *, unknown: Unknown = "refuse",
        times: ArrayLike | None = None,
    ) -> Interval:  # fmt: skip
        """Predictions with the intervals that hold a rating with probability `level`, within the range of ratings.

        The model's errors on its training ratings, each as if it had been left out, calibrate the width. `times`: as
        for `predict`.
        """
        self.bayesian("an interval")
        rows, columns = self._pairs(users, items, unknown)
        known, parts = self._parts(rows, columns)
        std = np.sqrt(1 / known.hyper.noise + parts.sum(axis=1)) * self.scaling.scale
        center, half = self._scores(rows, columns, times), known.factors(level, parts) * std
        return Interval(*(self._clipped(end) for end in (center, center - half, center + half)))

    def recommend(
        self,
        users: Any,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        cautious: bool = False,
        only: ArrayLike | None = None,
        exclude: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """The n best items of each user (or all, if there are fewer): (ids, scores), one row per user.

        Items are ranked by their predicted ratings or, if `cautious`, by a lower bound that the expected rating exceeds
        with 90 % probability. `only` and `exclude` are ids of items to choose from, and to leave out. A row with fewer
        items is filled up with the id -1 (or an empty string) and the score NaN.
        """
        rows = find_ids(self.users, users, "user")
        known = self.bayesian("a cautious recommendation") if cautious else None
        spread = None if known is None else float(special.ndtri(CAUTION)) * priors.spread(known, self.U, rows)
        chosen, left_out = (None if ids is None else find_ids(self.items, ids, "item") for ids in (only, exclude))
        allowed = recommending.allowed(len(self.items), chosen, left_out)
        seen = self.seen[rows]
        found = self._rows(rows, seen), self.V, seen if exclude_seen else None
        columns, scores = recommending.best(*found, n, allowed, spread, self._arranged)
        ids = recommending.named(self.items, columns)
        scores = np.where(columns < 0, np.nan, self._clipped(self._to_ratings(scores.astype(np.float64))))
        return (ids[0], scores[0]) if np.ndim(users) == 0 else (ids, scores)

    def ranking(self, held_out: Ratings, cutoffs: tuple[int, ...] = CUTOFFS) -> dict[int, Ranking]:
        """Ranking metrics by cutoff: all items that a user has not rated or had are ranked, `held_out` are relevant."""
        rows, columns = find_ids(self.users, held_out.users, "user"), find_ids(self.items, held_out.items, "item")
        return recommending.ranking((self._rows(rows), self.V), self.seen, (rows, columns), held_out.matrix, cutoffs)

    def similar(self, items: Any, n: int = 10) -> tuple[Array, Array]:
        """The n items that are most similar to each of these: (ids, cosines of the factors), one row per item."""
        found, cosines = recommending.similar(self._directions, find_ids(self.items, items, "item"), n)
        ids = recommending.named(self.items, found)
        return (ids[0], cosines[0]) if np.ndim(items) == 0 else (ids, cosines)

    def title_of(self, items: Any) -> Any:
        """The title of an item, or an array of titles like that of the ids; an empty string where it is not known."""
        columns = find_ids(self.items, np.ravel(items), "item", "prior")
        found = texts.at(self.titles, columns).reshape(np.shape(items))
        return str(found) if np.ndim(items) == 0 else found

    def find(self, text: str, n: int = 10) -> tuple[Array, Array]:
        """At most n items whose titles hold all words of the text, the best match first: (ids, titles).

        Case and accents do not count. Beginnings and parts of words match too, after whole words.
        """
        whole("n", n, 1, MAX_SEED)
        columns = self._title_index.search(text)[:n]
        return self.items[columns], texts.needed(self.titles)[columns]

    def explain(
        self,
        user: Id,
        item: Id,
        *,
        ratings: Ratings | None = None,
        also_seen: ArrayLike | None = None,
        user_features: Array | None = None,
        item_features: Array | None = None,
        names: Names | None = None,
    ) -> list[Effect]:
        """What moved a prediction, the largest effects first; they add up to it, before it is clipped.

        A model has no training ratings: it tells the effect of each if `ratings` has them, or if it comes from
        `fold_in`. `also_seen` are items of events without a rating. Features are rows as standardised for training.
        A model of events has no confidences and no order: `ratings` are those of training, with their times if they had
        any, else each counts 1 and `rest` differs.
        """
        (row,), (column,) = find_ids(self.users, [user], "user"), find_ids(self.items, [item], "item")
        if self.settings.make_algorithm().of_events:
            of_user = sparse.csr_array(self.seen[[row]]), column, self.items
            score = float(self._rows([row])[0] @ self.V[column])
            return event_effects.effects(self._broadcast(), *of_user, score, event_effects.Given(user, ratings))
        known = self.bayesian("an explanation")
        some = slice(*self.seen.indptr[row : row + 2])
        rated, values = self.seen.indices[some], None
        if ratings is not None:
            values = explain.ratings_of(ratings, user, self.items[rated])
        elif self.seen.data.dtype.kind == "f":  # else it is only a pattern
            values = self.seen.data[some].astype(np.float64)
        scaled = None if values is None else (values - self.scaling.mean) / self.scaling.scale
        seen = rated if also_seen is None else np.union1d(rated, find_ids(self.items, also_seen, "item"))
        mean = free_part(self.U[row : row + 1].astype(np.float64))[0]
        about = row, column, mean, rated, scaled, seen, user_features, item_features, names or Names()
        found = explain.effects(Case(known.for_seen(len(seen)), self.items, *about))
        of_ratings = [one._replace(effect=one.effect * self.scaling.scale) for one in found]
        return explain.ordered([Effect("mean", None, self.scaling.mean), *of_ratings])

    def has_seen(self, users: Any, items: Any, unknown: Unknown = "refuse") -> Array:
        """Which of these (user, item) pairs the model was trained on."""
        rows, columns = find_ids(self.users, users, "user", unknown), find_ids(self.items, items, "item", unknown)
        return recommending.among(self.seen, rows, columns)

    def fold_in(self, ratings: Ratings, features: Array | None = None) -> Model:
        """The model of new users: their factors are fitted to the items', which do not change.

        `features` are the users' own features, standardised as those of training, a row each. Recent events count more
        if the events have times.
        """
        matrix = onto_catalogue(self.items, ratings, self.V.dtype)
        if self.posterior is not None:
            problem = Problem(matrix, self.settings.make_loss(), self.scaling)
            fit = fit_at_home(problem, self.posterior, matrix, self.V.dtype, features, self._item_lines)
            known = self.posterior.of_newcomers(fit.covariances)
            return self._of_others(users=ratings.users, U=with_ones(fit.means), seen=matrix, posterior=known)
        algorithm = self.settings.make_algorithm()
        later = later_onto_catalogue(self.items, ratings)
        matrix = matrix if later is None else algorithm.in_predictions(matrix, later)
        U = algorithm.new_users(matrix, self._broadcast())
        return self._of_others(users=ratings.users, U=U, seen=matrix)

    def transform(self, ratings: Ratings) -> Array:
        """Users x all items of the model: the given ratings unchanged, the missing ones predicted by fold-in."""
        folded = self.fold_in(ratings)
        filled = self._clipped(self._to_ratings(folded._rows(slice(None)) @ self.V.T)).astype(np.float64)
        rows = np.repeat(np.arange(len(ratings.users)), np.diff(folded.seen.indptr))
        filled[rows, folded.seen.indices] = onto_catalogue(self.items, ratings, self.V.dtype).data
        return filled

    def bayesian(self, wish: str) -> Posterior:
        """The posterior, which `wish` needs."""
        if self.posterior is None:
            raise InputError(f"{wish} needs a Bayesian model: train with preset='bayes' (this one: {self._kind()})")
        return self.posterior

    def save(self, path: str | Path) -> None:
        """Write one .npz file without pickle, atomically."""
        about = {
            "clients": self.clients,
            "mean": self.scaling.mean,
            "scale": self.scaling.scale,
            "rating_range": self.rating_range,
            "settings": self.settings.to_dict(),
        }
        arrays = {"items": self.items, "V": self.V, "users": self.users, "U": self.U}
        arrays |= {"seen_indptr": self.seen.indptr, "seen_indices": self.seen.indices} | texts.stored(self.titles)
        files.write(path, arrays, about, self.posterior)

    def _broadcast(self) -> Broadcast:
        return Broadcast("finish", 0, self.clients, self.settings, self.V, self.scaling, Shared())

    def _of_others(self, **users: Any) -> Model:
        """The model with other users: what was computed from its items stays."""
        made = replace(self, **users)
        self._share_with(made)
        return made

    def _rows(self, rows: Any, seen: sparse.csr_array | None = None) -> Array:
        """The factors of these users, or what stands for them (`Algorithm.user_rows`)."""
        seen = self.seen[rows] if seen is None else seen
        return self.settings.make_algorithm().user_rows(self.U[rows], seen)

    def _kind(self) -> str:
        return f"{self.settings.preset_name}, algorithm {self.settings.make_algorithm()}"

    def _pairs(self, users: Any, items: Any, unknown: Unknown) -> tuple[Array, Array]:
        """Positions of users and items; -1 stands for the prior."""
        if unknown == "prior":
            self.bayesian("unknown='prior'")
        rows, columns = find_ids(self.users, users, "user", unknown), find_ids(self.items, items, "item", unknown)
        require(
            len(rows) == len(columns) or 0 in (np.ndim(users), np.ndim(items)),
            f"users and items must be equally long, got {len(rows)} and {len(columns)}: give one of each for every "
            "pair, or a single id (not in a list) that stands for all",
        )
        rows, columns = np.broadcast_arrays(rows, columns)
        return rows, columns

    def _scores(self, rows: Array, columns: Array, times: ArrayLike | None = None) -> Array:
        """Predictions on the rating scale, not clipped."""
        U, V = self._rows(rows), self.V[columns]
        if min(rows.min(initial=0), columns.min(initial=0)) < 0:
            priors.fill(self.bayesian("unknown='prior'"), U, rows, V, columns)
        scores = np.einsum("kr,kr->k", U, V)
        known = None if times is None else self.bayesian("a time").days
        if known is not None:
            scores = scores + known.at(rows, np.broadcast_to(np.asarray(times), rows.shape))
        return self._to_ratings(scores)

    def _parts(self, rows: Array, columns: Array) -> tuple[Posterior, Array]:
        """The posterior, and the variances of predictions: due to the user, the item, and both."""
        known = self.bayesian("a standard deviation")
        return known, priors.parts(known, rows, columns, self.U)

    def _std(self, rows: Array, columns: Array) -> Array:
        known, parts = self._parts(rows, columns)
        return np.asarray(np.sqrt(1 / known.hyper.noise + parts.sum(axis=1)) * self.scaling.scale)

    def _to_ratings(self, scores: Array) -> Array:
        return self.settings.make_loss().link(scores) * self.scaling.scale + self.scaling.mean

    def _clipped(self, ratings: Array) -> Array:
        return ratings if self.rating_range is None else np.clip(ratings, *self.rating_range)
