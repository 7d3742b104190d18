"""FedMC: federated matrix completion as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, NamedTuple

from numpy.typing import ArrayLike

from fedmc.algorithms import registry
from fedmc.algorithms.objectives import Objectives, by_number
from fedmc.algorithms.presets import Update, with_objectives, with_theory
from fedmc.algorithms.protocol import Algorithm, Sampler
from fedmc.algorithms.settings import DType, Feedback, Normalise, Preset, Settings
from fedmc.checks import RandomState, callbacks, check, drawn_seed
from fedmc.data import given as tables
from fedmc.data.builder import Duplicates
from fedmc.data.features import Source
from fedmc.data.feedback import EventOptions
from fedmc.data.ratings import Ratings
from fedmc.data.readers.columnar import collected
from fedmc.data.rows import Columns
from fedmc.data.side import Sources, federated, side_of_ratings
from fedmc.data.splits import at_random as split
from fedmc.errors import require
from fedmc.history import History
from fedmc.model import Model
from fedmc.predicting import Predicting
from fedmc.privacy import modes
from fedmc.privacy.protocol import ModeName, Privacy
from fedmc.problem.losses import Loss
from fedmc.problem.penalties import Penalty
from fedmc.progress import telling
from fedmc.training import ranks, warm
from fedmc.training.engines import EngineChoice, EngineName, as_engine
from fedmc.training.event_tuning import EventTrial
from fedmc.training.ranks import Rank, RankTrial
from fedmc.training.rounds import Round
from fedmc.training.side import usable
from fedmc.training.simulation import train
from fedmc.training.stopping import OnRound, Stop
from fedmc.training.tuning import Trial
from fedmc.types import Array

LossName = Literal["square", "huber", "logistic"]
OF_THE_RUN = {  # parameters that are not settings of the algorithm
    "preset", "columns", "clients", "rounds", "validation", "patience", "tolerance", "seconds", "duplicates",
    "full_diagnostics", "measure_every", "feedback", "confidence", "recency", "warm_start", "random_state", "verbose",
    "on_round", "objectives", "engine",
}  # fmt: skip


class Trained(NamedTuple):
    """What a fit was trained on, for `partial_fit`."""

    table: Ratings  # as given: events with their amounts
    sources: Sources
    clients: Mapping[object, object] | None  # of users, if they were given


@dataclass(eq=False, repr=False)
class FedMC(History, Predicting):
    """Federated matrix completion: users are distributed over clients, which share only updates of the item factors.

    Parameters left at None take the preset's value.

    Parameters
    ----------
    rank : number of factors. "auto" first finds out in short runs how many the ratings show; needs preset "bayes".
    preset : "bayes" (the most accurate: Bayesian, nothing to tune, with intervals), "fast" (point estimates, as
        accurate as pooled least squares) or "paper" (FedMC-ADMM as published). A setting that "bayes" does not have,
        such as another loss or a penalty, chooses "fast" and is logged.
    feedback : "explicit" (ratings) or "implicit" (events such as purchases, clicks, plays: pairs, or amounts above 0).
    confidence : of events, how an amount becomes a weight: "none" (1 each), "log", "log:A,E" or "linear:A"; None:
        "none" if all amounts are 1, else "log".
    recency : of events, whether a user's recent ones count more in predictions, if their times are known.
    columns : the columns of X that hold users and items, two names or positions; None: those with the usual names,
        such as user and item, or X has no others.
    clients : number of simulated clients; users are assigned at random unless `fit(..., clients=...)` assigns them.
    active : clients per round; None: at most 10, or all under differential privacy.
    rounds : communication rounds.
    algorithm : name of an algorithm, built in or from an installed plug-in, or an object of your own.
    method : "fedmc", or the name of a method to compare with, such as "fedavg"; an older form of `algorithm`.
    update : the variant of FedMC: "linearised", "explicit", "exact" or "curvature"; an older form of `algorithm`.
    loss : "square", "huber" or "logistic", or a loss object such as `losses.Huber(0.5)`.
    penalty_users : penalty or constraint on the user factors: a spec such as "l2:10", or an object with `value` and
        `prox`. "auto" chooses an l2 weight first, on a tenth of each client's ratings.
    penalty_items : as for users; "auto" takes the users' penalty divided by the number of clients.
    objectives : penalties and losses of single clients, an `Objective` each: a mapping from clients (names as given to
        `fit`, or numbers), or a function of a client, None for those of the run.
    beta : ADMM penalty parameter, which ties clients' copies of the item factors to the shared ones, or "auto".
    inner_steps : steps on each factor matrix in a client's update (the paper's N).
    sampler : how clients are sampled: "uniform", "coins", "groups", "passes", a spec such as
        "coins:0.5x2,0.1x8" or "doubly-uniform:5=0.7,20=0.3", or an object of your own.
    normalise : "none", "mean" or "standard": how ratings are centred and scaled.
    biases : whether users and items have a bias.
    implicit : whether prior means depend on who rated what (preset "bayes").
    privacy : privacy mode: "plain", "secagg", "dp" or "dp+secagg", or a value such as `modes.SecAgg(min_cohort=5)`.
        docs/explanation/privacy.md explains what each may claim.
    min_cohort : with secure aggregation, the smallest number of honest clients that a sum is taken over.
    decoys : with secure aggregation, the part of its unrated items for which a client adds a decoy; 0 by default.
    epsilon : with differential privacy, the budget of each user over all rounds.
    delta : with differential privacy, below one over the number of users.
    ratings_from : with differential privacy, the lower end of the public range of ratings.
    ratings_to : with differential privacy, the upper end of this range.
    clip : in plain mode, clip updates to this multiple of the median update norm; 0 switches it off.
    dtype : "float32" or "float64".
    validation : share of the ratings that is held out for `patience`.
    patience : stop after this many rounds without a better validation RMSE.
    tolerance : stop when both relative residuals are below this.
    seconds : stop after this many seconds of updates.
    warm_start : whether `fit` goes on from the model of the fit before; its X holds all ratings, old and new.
    duplicates : what to do with a (user, item) pair that has several ratings: "refuse", "last" or "mean".
    full_diagnostics : also measure the quantities of the theory (slower).
    measure_every : rounds between measurements; None: chosen so that measuring costs little.
    engine : what carries the simulation: "local" (this process), "ray" (worker processes), or an `OnRay`.
    seed : random seed; the same seed gives the same bits.
    random_state : the same under scikit-learn's name: a whole number, or a numpy RandomState or Generator, from which
        each fit draws its seed. None: `seed` counts.
    verbose : progress on stderr or in the notebook: 0 none, 1 one line that moves on, 2 a line for each round.
    on_round : a function, or a list of them, called with the `Round` after each round; True ends training.

    Attributes
    ----------
    model_ : the trained `Model`.
    rounds_ : a `Round` for each round.
    history_ : their numbers as a pandas DataFrame.
    confidence_ : of events, how amounts became weights.
    n_rounds_ : number of the last round.
    client_of_user_ : the client of each user.
    trials_ : the trials of `rank="auto"` or of `penalty_users="auto"`.
    """

    rank: Rank = 20
    _: KW_ONLY
    preset: Preset = "bayes"
    feedback: Feedback = "explicit"
    confidence: str | None = None
    recency: bool = True
    columns: Columns | None = None
    clients: int = 10
    active: int | None = None
    rounds: int = 50
    algorithm: str | Algorithm | None = None
    method: str | Algorithm | None = None
    loss: LossName | Loss | None = None
    penalty_users: str | Penalty | None = None
    penalty_items: str | Penalty | None = None
    objectives: Objectives | None = None
    beta: float | Literal["auto"] | None = None
    inner_steps: int | None = None
    update: Update | None = None
    sampler: str | Sampler | None = None
    normalise: Normalise | None = None
    biases: bool | None = None
    implicit: bool | None = None
    privacy: ModeName | Privacy = "plain"
    min_cohort: int | None = None
    decoys: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    ratings_from: float | None = None
    ratings_to: float | None = None
    clip: float | None = None
    dtype: DType = "float64"
    validation: float = 0.0
    patience: int | None = None
    tolerance: float | None = None
    seconds: float | None = None
    warm_start: bool = False
    duplicates: Duplicates = "refuse"
    full_diagnostics: bool = False
    measure_every: int | None = None
    engine: EngineName | EngineChoice = "local"
    seed: int = 0
    random_state: RandomState = None
    verbose: int = 0
    on_round: OnRound | Sequence[OnRound] | None = None
    model_: Model = field(init=False)
    rounds_: list[Round] = field(init=False)
    trials_: tuple[Trial | RankTrial | EventTrial, ...] = field(init=False)
    confidence_: str | None = field(init=False)
    n_rounds_: int = field(init=False)
    client_of_user_: Array = field(init=False)
    _trained_on: Trained = field(init=False)
    __metadata_request__fit = {"groups": True}  # scikit-learn's routing hands them to fit  # noqa: RUF012

    def fit(
        self,
        X: object,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        clients: tables.Clients | None = None,
        user_features: Source | None = None,
        items: Source | None = None,
        also_seen: Source | None = None,
    ) -> FedMC:
        """Train on (user, item) rows X and ratings y, or on a table of ratings X.

        Rows are an array of numbers or strings, or a DataFrame; a table is a `Ratings`, a DataFrame, a scipy sparse
        matrix, three arrays, or a 2-D array with NaN where unknown. `groups` names the client that each row of X comes
        from; all rows of a user come from one. `clients` assigns users to clients: a mapping from user id to client, an
        array with one client per user (by sorted ids), or a DataFrame column. Without it they are assigned at random.

        For preset "bayes", DataFrames or files may add `user_features` (an id, numbers, categories; they stay at the
        client), `items` (the same, and a title; items without ratings too) and `also_seen` (user, item: views). Any
        other model takes the titles of `items`, and no features.
        """
        table = self._rows(X, y, groups, reset=True)
        names = tables.names_given(table, X, clients, self._events())
        start_from = self.model_ if self.warm_start and hasattr(self, "model_") else None
        return self._fit(Trained(table, Sources(user_features, items, also_seen), names), self.rounds, start_from)

    def partial_fit(
        self,
        X: object,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        clients: tables.Clients | None = None,
    ) -> FedMC:
        """Go on with new ratings: they are added to those of before, and training goes on for a few rounds.

        A new rating of a known (user, item) pair replaces the old one; amounts of events add up. `clients` assigns new
        users, as in `fit`; known ones stay with their clients. Features and items seen are those given to `fit`. The
        first call is a `fit`. The estimator keeps the ratings that it was trained on.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y, groups=groups, clients=clients)
        new, events, before = self._rows(X, y, groups), self._events(), self._trained_on
        table = tables.with_new(before.table, new, "last" if events is None else "sum")
        names = tables.names_with_new(before.clients, tables.names_given(new, X, clients, events))
        return self._fit(Trained(table, before.sources, names), min(self.rounds, warm.ROUNDS), self.model_)

    def _fit(self, given: Trained, rounds: int, start_from: Model | None) -> FedMC:
        """Train on what is given; with `start_from`, go on from this model."""
        events, seed = self._events(), drawn_seed(self.seed, self.random_state)
        owner = tables.owners_given(given.table.users, given.clients, self.clients, seed)
        own = by_number(self.objectives, tables.client_names(given.table.users, given.clients, owner))
        scale = tables.scale_of(given.table, events, self.confidence if start_from is None else self.confidence_)
        rank = self.rank if start_from is None else start_from.settings.rank
        settings = replace(self, rank=ranks.first(rank), seed=seed, random_state=None).settings(int(owner.max()) + 1)
        ratings, side = side_of_ratings(usable(settings, given.sources), tables.scaled(given.table, scale))
        validation = None
        if self.validation:
            ratings, validation = split(ratings, self.validation, seed)
            require(len(validation) > 0, f"a validation share of {self.validation} leaves no rating to validate on")
        stop = Stop(rounds, self.tolerance, self.seconds, self.patience)
        needed = "patience needs validation ratings: set validation=0.1"
        require(self.patience is None or validation is not None, needed)
        federation = federated(ratings, owner, settings.dtype, None, validation, side, events=events is not None)
        settings, tried = ranks.chosen(federation.shards, settings, rank)
        with telling(rounds, int(self.verbose)) as progress:
            run = train(
                federation, settings, stop, measure_every=self.measure_every, full=self.full_diagnostics,
                on_round=[*progress, *callbacks(self.on_round)], start_from=start_from, objectives=own,
                engine=as_engine(self.engine),
            )  # fmt: skip
        self.model_, self.rounds_, self.trials_ = run.model, run.history, tried or run.trials
        self.confidence_, self.n_rounds_, self.client_of_user_ = scale, run.history[-1].number, owner
        self._trained_on = given
        if run.diverged is not None:  # the last finite model stays in model_
            raise run.diverged
        return self

    def settings(self, clients: int) -> Settings:
        """The settings of a run over `clients` clients."""
        given = {name: value for name, value in self.get_params().items() if name not in OF_THE_RUN}
        given["seed"] = drawn_seed(self.seed, self.random_state)
        if given["active"] is None:
            given["active"] = modes.as_privacy(self.privacy).default_active(clients)
        preset: str = "implicit" if self._events() is not None else self.preset
        if self.full_diagnostics or self.tolerance is not None:
            preset = with_theory(preset)
        preset = preset if self.objectives is None else with_objectives(preset)
        return Settings.preset(preset, dp_rounds=self.rounds, **given)

    def fit_transform(self, X: object, y: ArrayLike | None = None) -> Array:
        """Fit, and complete the table of the ratings: users x items, those that were given unchanged."""
        return self.fit(X, y).model_.transform(self._trained_on.table)

    def _events(self) -> EventOptions | None:
        """How tables are read: as ratings (None), or as events."""
        implicit = self.feedback == "implicit" or any(map(registry.of_events, (self.algorithm, self.method)))
        return EventOptions(recency=self.recency) if implicit or self.preset == "implicit" else None

    def _rows(self, X: object, y: ArrayLike | None, groups: ArrayLike | None, reset: bool = False) -> Ratings:
        """What to train on, if the parameters are good."""
        check(self.get_params())
        X = collected(X)
        if y is not None:
            self._note_columns(X, y, reset=reset)
        elif reset:
            self._forget_columns()
        return tables.ratings_given(X, y, self.duplicates, self._events(), groups, self.columns)

    def _table(self, X: object, y: ArrayLike | None = None) -> Ratings:
        return tables.ratings_given(X, y, self.duplicates, self._events(), None, self.columns)
