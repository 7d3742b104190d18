"""The usual names of columns."""

from __future__ import annotations

from collections.abc import Sequence

EVENT_NAMES = (
    "event", "events", "event_type", "eventtype", "event_name", "action", "action_type", "behavior", "behaviour",
    "behavior_type", "interaction", "interaction_type",
)  # fmt: skip
TIME_NAMES = ("timestamp", "time", "date", "datetime", "rated_at", "created_at")
COLUMN_NAMES = {
    "user": ("user", "userid", "user_id", "customer", "customer_id", "uid", "patient", "patient_id"),
    "item": ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "product", "product_id", "iid"),
    "rating": ("rating", "score", "value", "stars"),
}


def find_usual(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The column with the first of some usual names, in any case; None if there is none."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[name] for name in usual if name in lower), None)
