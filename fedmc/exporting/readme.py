"""The README of an export: the formula in words and as Python that needs numpy, and pyarrow or the form's library."""

from __future__ import annotations

from collections.abc import Mapping

from fedmc.exporting import snippets
from fedmc.exporting.content import Content

LINK_CODE = {"identity": "score", "logistic": "(1 + np.tanh(score / 2)) / 2"}
LINK_WORDS = {"identity": "the identity", "logistic": "1 / (1 + exp(-score))"}


def page(content: Content, to: str, files: Mapping[str, str], text: str) -> str:
    """The whole README."""
    items, users = len(content.items.ids), content.users
    about = f"{items:,} items" if users is None else f"{len(users.ids):,} users and {items:,} items"
    made = ", ".join(f"{name} {value}" for name, value in content.about.items())
    listed = "\n".join(f"- `{name}`: {what}" for name, what in files.items())
    notes = "".join(f"\n{note}\n" for note in content.notes)
    return (
        f"# Export of a model\n\nForm `{to}`, of {about} ({made}). Written by `fedmc export`.\n\n"
        f"{listed}\n- `metadata.json`: the numbers of the formula besides the factors\n\n"
        f"## The formula\n\n{formula_in_words(content)}{notes}\n{text}"
    )


def formula(content: Content) -> str:
    """The formula in one line."""
    score = "score(user, item) = sum of item_weights[item, k] over the items k that the user had"
    if content.items.weights is None:
        score = "score(user, item) = user_factors[user] . item_factors[item] + user_bias[user] + item_bias[item]"
    return f"prediction = clip(link(score) * scale + mean, low, high); {score}"


def formula_in_words(content: Content) -> str:
    """The formula with this model's numbers."""
    score = "    score      = sum of item_weights[item, k] over the items k that the user had"
    if content.items.weights is None:
        score = "    score      = user_factors · item_factors + user_bias + item_bias"
    clip = f"clipped to {content.low:g} ... {content.high:g}" if content.low > -float("inf") else "not clipped"
    link = f"that of loss {content.about['loss']}, to be applied by the reader"
    if content.link is not None:
        link = LINK_WORDS[content.link]
    lines = [score, "    prediction = link(score) * scale + mean"]
    return (
        "\n".join(lines)
        + f"\n\nThe link is {link}; scale = {content.scale!r}, mean = {content.mean!r}; predictions are {clip}.\n"
        "Items are ranked by their scores. A user's own bias does not change the order.\n"
    )


def of_npz(content: Content) -> str:
    return _code(snippets.NPZ if content.users is None else snippets.NPZ + snippets.NPZ_USERS, content)


def of_parquet(content: Content) -> str:
    by_weights = content.items.weights is not None
    load = snippets.PARQUET + _titles(content)
    load += snippets.PARQUET_WEIGHTS if by_weights else snippets.PARQUET_FACTORS.format(side="item")
    if content.users is not None:
        load += snippets.PARQUET_USERS + ("" if by_weights else snippets.PARQUET_FACTORS.format(side="user"))
    if content.spread is not None:
        load += snippets.PARQUET_SPREAD + ("" if content.users is None else snippets.PARQUET_USER_SPREAD)
    return _code(load, content)


def of_exact_index(content: Content) -> str:
    return _of_index(content, snippets.EXACT)


def of_hnsw_index(content: Content) -> str:
    return _of_index(content, snippets.HNSW)


def of_onnx(content: Content) -> str:
    load = snippets.ONNX + _titles(content) + ("" if content.users is None else snippets.PARQUET_USERS)
    code = snippets.ONNX_VECTOR if content.users is None else snippets.ONNX_USER
    if content.items.weights is not None:
        code = snippets.ONNX_WEIGHTS.replace("DTYPE", f"np.{content.dtype}")
    words = f"Real numbers that go in and come out are {content.dtype}, rows of the tables int64, masks bool.\n"
    return f"## The graphs\n\n{words}\n" + _titled("## Use it", load + snippets.ONNX_RUN + code)


def _titles(content: Content) -> str:
    return "" if content.items.titles is None else snippets.TITLES


def _of_index(content: Content, search: str) -> str:
    """The text of an index: its vectors, the query, and the search."""
    load = snippets.PARQUET + _titles(content) + snippets.INDEX
    if content.users is not None:
        load += snippets.PARQUET_USERS + snippets.PARQUET_FACTORS.format(side="user")
    finish = snippets.INDEX_RATING.format(link=_link(content))
    whole = load + search + finish + (snippets.INDEX_USER if content.users is not None else "")
    return snippets.INDEX_WORDS + "\n" + _titled("## Use it", whole)


def _link(content: Content) -> str:
    return LINK_CODE[content.link] if content.link is not None else "score"


def _code(load: str, content: Content) -> str:
    """How to load the arrays, and the formula on them."""
    by_weights, known = content.items.weights is not None, content.users is not None
    score = {
        (False, True): snippets.SCORE, (False, False): snippets.SCORE_VECTOR,
        (True, True): snippets.SCORE_WEIGHTS, (True, False): snippets.SCORE_HAD,
    }[by_weights, known]  # fmt: skip
    of = "user, item" if known else ("had, item" if by_weights else "factors, bias, item")
    predict = snippets.PREDICT.format(of=of, link=_link(content))
    best = snippets.RECOMMEND if known else ""
    spread = snippets.SPREAD if content.spread is not None and known else ""
    return _titled("## Use it", load + score + predict + best + spread)


def _titled(title: str, code: str) -> str:
    return f"{title}\n\n```python\n{code.strip()}\n```\n"
