"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

PENALTIES = "none, l2:W, l1:W, elastic-net:L1,L2, non-negative, box:LO,HI, group-l2:W or a plug-in's name"
PARTITIONS = "uniform, one-user, dirichlet:A, power:A, file:PATH or column:NAME"
SPLITS = "a share such as 0.2 (random:0.2 means the same), share:S of each user, last:K, leave:K or date:YYYY-MM-DD"

PrivacyMode = Literal["plain", "secagg", "dp", "dp+secagg"]
UpdateName = Literal["linearised", "explicit", "exact", "curvature"]

# The source and how it is read.
Source = Annotated[
    str,
    Argument(
        help="Ratings or events: a file, folder, archive, address of a database or of object storage (s3://, gs://), "
        "named or prepared data set, `demo`, or like:ml-1m for synthetic ones."
    ),
]
Columns = Annotated[
    str | None, Option(help="Names of the user, item and rating columns, separated by commas.", show_default="detected")
]
Query = Annotated[str | None, Option(help="For a database: the SQL query that returns user, item and rating.")]
Duplicates = Annotated[
    Literal["refuse", "last", "mean"],
    Option(help="For a (user, item) pair with several ratings: refuse it, keep the last, or take the mean."),
]
Catalogue = Annotated[Path | None, Option(help="Catalogue file of the items that the organisations agreed on.")]
UnknownItems = Annotated[Literal["refuse", "drop"], Option(help="What to do with items outside the catalogue.")]
UserFeatures = Annotated[
    str | None,
    Option(
        help="Table of the users' features: an id and columns of numbers or categories, with a header. They stay at "
        "the client. Needs preset bayes.",
        metavar="FILE",
    ),
]
Items = Annotated[
    str | None,
    Option(
        help="Public table of the items: an id, a title, and columns of numbers or categories, with a header; several "
        "categories in a cell are separated by |. Preset bayes learns from the columns, and adds items without "
        "ratings; others keep the titles. Also movies.dat and u.item of MovieLens.",
        metavar="FILE",
    ),
]
AlsoSeen = Annotated[
    str | None,
    Option(
        help="Events without a rating, such as views: user, item and, for splits by time, time. Held-out pairs and "
        "events later than the training ratings are not used. Needs preset bayes.",
        metavar="FILE",
    ),
]
Implicit = Annotated[
    bool | None,
    Option(
        "--implicit/--no-implicit",
        help="Whether prior means depend on who rated what (preset bayes).",
        show_default="the preset's",
    ),
]
Times = Annotated[
    bool,
    Option(
        "--times",
        help="Read the times of the ratings too, and learn a bias for each user and day, which stays at its client. "
        "Needs preset bayes.",
    ),
]
Categorical = Annotated[
    str | None,
    Option(
        help="Columns of these tables whose numbers are categories, separated by commas.",
        metavar="NAMES",
        show_default="those that are not all numbers",
    ),
]
Test = Annotated[str, Option(help=f"Ratings or events to hold out for testing: {SPLITS}; 0 for none.")]
Partition = Annotated[str, Option(help=f"How users are assigned to clients: {PARTITIONS}.")]
Clients = Annotated[int, Option(help="Number of simulated clients that the users are distributed over.")]
Seed = Annotated[int, Option(help="Random seed; the same seed gives the same result, bit for bit.")]

# Events such as purchases and clicks, instead of ratings.
Feedback = Annotated[
    Literal["explicit", "implicit"] | None,
    Option(
        help="What the source holds: ratings (explicit), or events such as purchases, clicks and plays (implicit).",
        show_default="recognised; you are asked before events are used",
    ),
]
Confidence = Annotated[
    str | None,
    Option(
        help="Of events: the column with the amount of each, such as hours or a quantity. Repeated events add up.",
        metavar="COLUMN",
        show_default="the rating's if there is one, else 1",
    ),
]
ConfidenceScale = Annotated[
    str | None,
    Option(
        help="Of events: how an amount x becomes a confidence: none (1), log (1 + log(1 + x)), log:A,E (1 + A log(1 + "
        "x/E)) or linear:A (1 + A x).",
        metavar="none|log|log:A,E|linear:A",
        show_default="none if all amounts are 1, else log",
    ),
]
Event = Annotated[
    str | None,
    Option(
        help="Of events: the column with their types, which --event-weights weighs.",
        metavar="COLUMN",
        show_default="one with a usual name",
    ),
]
EventWeights = Annotated[
    str | None,
    Option(
        "--event-weights",
        help="Of events: weights of their types, such as view=1,cart=3,purchase=5. Other types are left out.",
        metavar="TYPE=WEIGHT,...",
    ),
]
MinEvents = Annotated[
    int,
    Option(help="Of events: leave out users and items with fewer different pairs than this, repeatedly (k-core)."),
]
Recency = Annotated[
    bool,
    Option(
        "--recency/--no-recency",
        help="Of events: whether a user's recent ones count more in recommendations, if the source has times.",
    ),
]
MinRating = Annotated[
    float | None,
    Option(help="Of events: only rows of at least this rating are events, and each counts 1.", metavar="RATING"),
]

# The model and the algorithm.
Rank = Annotated[int, Option(help="Number of latent factors.")]
FoundRank = Annotated[
    str,
    Option(
        help="Number of latent factors. auto: as many as the ratings show, found in short runs; of events, alpha0 and "
        "lambda are chosen too."
    ),
]
Active = Annotated[
    int | None, Option(help="Number of clients sampled in each round.", show_default="at most 10; with dp, all")
]
Preset = Annotated[
    Literal["bayes", "fast", "paper", "implicit"],
    Option(
        help="Default settings: bayes (most accurate, nothing to tune, with intervals), fast (point estimates), paper "
        "(FedMC-ADMM as published), or implicit (iALS, for events such as purchases and clicks)."
    ),
]
PENALTY_HELP = f"Penalty on the user factors: {PENALTIES}; join several with +."
PenaltyUsers = Annotated[str | None, Option(help=PENALTY_HELP, show_default="the preset's")]
TunedPenaltyUsers = Annotated[
    str | None,
    Option(help=f"{PENALTY_HELP} auto: l2, its weight tuned on held-out ratings.", show_default="the preset's"),
]
PenaltyItems = Annotated[
    str | None,
    Option(
        help="Penalty on the item factors, written like --penalty-users. auto: the users' penalty divided by the "
        "number of clients.",
        show_default="the preset's",
    ),
]
Beta = Annotated[
    str | None,
    Option(help="ADMM penalty parameter: a number above 0, or auto for one per item.", show_default="the preset's"),
]
InnerSteps = Annotated[
    int | None, Option(help="Local steps on each factor matrix per round (N in the paper).", show_default="10")
]
Method = Annotated[
    str | None,
    Option(
        "--algorithm",
        "--method",
        help="Algorithm: fedmc (the update that --update or the preset names), fedmavg, fedmgs, fedavg, fedprox[:MU], "
        "scaffold, fedadmm[:SHARE], for events ials[:ALPHA0,LAMBDA,NU], or a plug-in's name.",
        show_default="fedmc",
    ),
]
Loss = Annotated[
    str | None, Option(help="Loss: square, huber[:DELTA], logistic or a plug-in's name.", show_default="square")
]
Update = Annotated[
    UpdateName | None,
    Option(help="How a client updates its copy of the item factors.", show_default="the preset's"),
]
Sampler = Annotated[
    str | None,
    Option(
        help="How clients are sampled: uniform, coins, groups, passes or a plug-in's name; coins:P1,P2,... with a "
        "probability for each client (0.5x2,0.1x8 for ten); doubly-uniform:5=0.7,20=0.3, a round of 5 or of 20.",
        show_default="the preset's",
    ),
]
Normalise = Annotated[
    Literal["none", "mean", "standard"] | None,
    Option(
        help="mean: subtract the mean rating; standard: also divide by the standard deviation.",
        show_default="the preset's",
    ),
]
Dtype = Annotated[Literal["float32", "float64"], Option(help="Floating-point type of the computation.")]

# Rounds and measurements.
Rounds = Annotated[int, Option(help="Number of communication rounds.")]
MeasureEvery = Annotated[int, Option(help="Measure the objective and the errors every so many rounds.")]

# Privacy.
Ranking = Annotated[
    bool,
    Option(
        "--ranking",
        help="For ratings: also measure, in each measured round, how held-out ratings are ranked (NDCG, Recall, ...). "
        "Models of events always are.",
    ),
]
Privacy = Annotated[
    PrivacyMode,
    Option(
        help="What the server sees: every client's message (plain), sums over cohorts (secagg), messages with noise "
        "(dp), or sums with noise (dp+secagg)."
    ),
]
MinCohort = Annotated[int, Option(help="With secagg: minimum number of honest clients that a sum is taken over.")]
Decoys = Annotated[
    float,
    Option(help="With secagg: part of the items that nobody there rated for which a client adds a decoy, 0 to 1."),
]
Epsilon = Annotated[float, Option(help="With dp: privacy budget epsilon of each user, over all rounds.")]
Delta = Annotated[float, Option(help="With dp: delta; choose it below 1 / number of users.")]
RatingRange = Annotated[str, Option(help="With dp: the publicly known range of the ratings, LOW,HIGH.")]
Clip = Annotated[
    float, Option(help="With plain: clip updates to this many times the median update norm; 0 does not clip.")
]

# Logging to MLflow.
MLflow = Annotated[
    bool,
    Option(
        "--mlflow",
        help="Log settings, measurements and the report to MLflow: to MLFLOW_TRACKING_URI or its default store.",
    ),
]
MLflowURI = Annotated[
    str | None, Option("--mlflow-uri", metavar="URI", help="The same, at this tracking server or database.")
]

# Results.
AsJson = Annotated[bool, Option("--json", help="Also print the result as one line of JSON, last.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]
Number = Annotated[int, Option("-n", "--number", "--n", help="Number of items for each user.")]

# Which items may be recommended.
Only = Annotated[
    str | None,
    Option(
        help="Recommend only these items: ids, or words of a title, separated by commas, or a file with an id in each "
        "line.",
        metavar="IDS|FILE",
    ),
]
Exclude = Annotated[str | None, Option(help="Do not recommend these items; written like --only.", metavar="IDS|FILE")]
Category = Annotated[
    list[str] | None,
    Option(
        help="Recommend only items of this category, such as genres=Drama; may be repeated: any of the categories of "
        "one column, and all columns.",
        metavar="NAME=VALUE",
    ),
]
CategoryTable = Annotated[
    str | None,
    Option(
        help="Table of the items with their titles and categories: an id, and columns, with a header; several "
        "categories in a cell are separated by |.",
        metavar="FILE",
        show_default="the table that the run was trained with, or the node's catalogue",
    ),
]
