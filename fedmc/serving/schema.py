"""Requests and answers, with the bounds of each value. Unknown fields, NaN and values of another type are refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_ITEMS = 1_000  # that an answer lists
MAX_PAIRS = 1_000  # that one request predicts
MAX_LIST = 10_000  # ids of items to choose from or to leave out
MAX_RATINGS = 1_000  # of a visitor
MAX_ID = 300  # characters of an id
MAX_TEXT = 200  # characters of a search
LARGEST = 1e6  # rating, or amount of an event, without its sign
LAST = 2**53  # seconds since 1970

IntId = Annotated[int, Field(ge=-(2**63) + 1, le=2**63 - 1)]
TextId = Annotated[str, Field(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00]+$")]
Id = IntId | TextId
Number = Annotated[int, Field(ge=1, le=MAX_ITEMS, description="How many items at most.")]
Level = Annotated[
    float,
    Field(gt=0, le=0.9999, description="Probability with which the interval holds a rating; needs a Bayesian model."),
]
Ids = Annotated[list[Id], Field(max_length=MAX_LIST, fail_fast=True)]
Unknown = Literal["refuse", "prior"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Filtered(_Strict):
    """How to recommend, and what."""

    exclude_seen: bool = Field(True, description="Leave out what the user has rated or had.")
    cautious: bool = Field(
        False, description="Rank by what the expected rating exceeds with 90 % probability; needs a Bayesian model."
    )
    only: Ids | None = Field(None, description="Ids of items to choose from. Unknown ones are listed as ignored.")
    exclude: Ids = Field([], description="Ids of items to leave out. Unknown ones are listed as ignored.")


class Recommend(Filtered):
    """The best items of a user."""

    model_config = ConfigDict(json_schema_extra={"example": {"user": 17, "n": 5}})
    user: Id
    n: Number = 10


class Pair(_Strict):
    user: Id
    item: Id


class Predict(_Strict):
    """The ratings of (user, item) pairs, or the scores of a model of events."""

    model_config = ConfigDict(json_schema_extra={"example": {"pairs": [{"user": 17, "item": 260}], "interval": 0.9}})
    pairs: Annotated[list[Pair], Field(min_length=1, max_length=MAX_PAIRS, fail_fast=True)]
    interval: Level | None = None
    unknown: Unknown = Field(
        "refuse",
        description="Refuse unknown ids, or predict them as users and items without ratings (Bayesian models).",
    )


class Rating(_Strict):
    item: Id
    rating: Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | None = Field(
        None,
        description="Required by a model of ratings. In a model of events the amount, above 0; 1 if it is left out.",
    )
    time: Annotated[int, Field(ge=0, le=LAST)] | None = Field(
        None, description="Seconds since 1970, of all or of none: a model of events may count recent events more."
    )


class FoldIn(Filtered):
    """A visitor: recommendations and predictions from these ratings or events. Nothing is kept."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"ratings": [{"item": 260, "rating": 5}, {"item": 1, "rating": 3}], "n": 5}}
    )
    ratings: Annotated[list[Rating], Field(min_length=1, max_length=MAX_RATINGS, fail_fast=True)] = Field(
        description="Items that the model does not know are listed as ignored."
    )
    n: Annotated[int, Field(ge=0, le=MAX_ITEMS, description="How many items at most; 0: none.")] = 10
    predict: Annotated[list[Id], Field(max_length=MAX_PAIRS, fail_fast=True)] = Field(
        [], description="Ids of items to predict."
    )
    interval: Level | None = None


class Similar(_Strict):
    """The items whose factors point most nearly in the direction of an item's."""

    model_config = ConfigDict(json_schema_extra={"example": {"item": 260, "n": 5}})
    item: Id
    n: Number = 10


class Find(_Strict):
    """The items whose titles hold all words of a text, the best match first."""

    model_config = ConfigDict(json_schema_extra={"example": {"text": "toy story", "n": 5}})
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    n: Number = 10


class Titled(BaseModel):
    """An item; without a title if the model has none for it."""

    item: int | str
    title: str | None = None


class Scored(Titled):
    """An item and its predicted rating, score or cosine."""

    score: float


class Prediction(Titled):
    user: int | str | None = None  # a visitor has no id
    prediction: float
    low: float | None = None
    high: float | None = None


class Answer(BaseModel):
    model: str = Field(description="The hash of the model that answered, as in /v1/health.")


class Recommended(Answer):
    user: int | str
    items: list[Scored]
    ignored: list[int | str] = Field([], description="Ids of items that the model does not know.")


class Predicted(Answer):
    predictions: list[Prediction]


class FoldedIn(Answer):
    items: list[Scored]
    predictions: list[Prediction]
    ignored: list[int | str] = Field([], description="Ids of items that the model does not know.")


class SimilarItems(Answer):
    item: int | str
    items: list[Scored]


class FoundItems(Answer):
    items: list[Titled]


class About(BaseModel):
    """The model in use."""

    hash: str = Field(description="The first 12 digits of the SHA-256 of its file.")
    name: str
    loaded: str = Field(description="When, in UTC.")
    preset: str
    rank: int
    users: int
    items: int
    titles: bool
    intervals: bool = Field(description="Whether it is Bayesian: intervals and cautious recommendations.")
    events: bool = Field(description="Whether it was trained on events instead of ratings.")
    rating_range: tuple[float, float] | None = None


class Refused(BaseModel):
    """A new model that cannot be read: the one before is in use."""

    when: str = Field(description="In UTC.")
    why: str


class Health(BaseModel):
    status: Literal["ok", "old"] = Field(description="old: a new model was refused, and the one before goes on.")
    version: str = Field(description="Of fedmc.")
    model: About
    refused: Refused | None = None


Code = Literal[
    "bad_request", "unauthorized", "not_found", "method_not_allowed", "too_slow", "no_length", "too_large", "not_json",
    "wrong_host", "invalid", "unknown_user", "unknown_item", "internal", "too_busy",
]  # fmt: skip


class Place(BaseModel):
    where: str = Field(description="Such as pairs[3].item.")
    message: str


class Problem(BaseModel):
    """Why a request was refused: the value, the bound and the cure."""

    code: Code
    message: str
    places: list[Place] = []
