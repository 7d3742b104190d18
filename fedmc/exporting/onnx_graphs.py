"""ONNX graphs of a model: predictions of pairs, and the best items of users.

    predict.onnx            user, item                       -> prediction
    recommend.onnx          user, n, exclude                 -> items, scores
    predict_vector.onnx     factors, bias, item              -> prediction
    recommend_vector.onnx   factors, bias, n, exclude        -> items, scores

Users and items are rows of the tables beside the graphs. The first two hold the users' factors; the others are given
them. A model from items to items takes `had` in place of factors and bias: 1 for each item that the user had, else 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmc import __version__
from fedmc.errors import InputError, require
from fedmc.exporting.content import Content
from fedmc.exporting.tables import write_ids
from fedmc.types import Array

OPSET, IR_VERSION = 17, 8  # of 2022: runtimes of that year and later read them
MOST = 2**31 - 1  # bytes of a file of protocol buffers
PREDICT, RECOMMEND = "predict.onnx", "recommend.onnx"
PREDICT_VECTOR, RECOMMEND_VECTOR = "predict_vector.onnx", "recommend_vector.onnx"
ITEM_SHAPE: tuple[str | int, ...] = ("pairs",)
LINKED = {"identity": "Identity", "logistic": "Sigmoid"}  # operators of the links
TOLD = {
    PREDICT: "(user, item) -> prediction",
    RECOMMEND: "(user, n, exclude) -> items, scores",
    PREDICT_VECTOR: "(factors, bias, item) -> prediction",
    RECOMMEND_VECTOR: "(factors, bias, n, exclude) -> items, scores",
}


class _Graph:
    """A graph that grows node by node; each method returns the name of a node's output."""

    def __init__(self, onnx: Any, content: Content) -> None:
        self.onnx, self.content = onnx, content
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.arrays: dict[str, Array] = {}
        self.kind = onnx.helper.np_dtype_to_tensor_dtype(content.dtype)

    def node(self, operator: str, *inputs: str, out: str = "", also: Sequence[str] = (), **attributes: int) -> str:
        name = out or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name, *also], **attributes))
        return name

    def array(self, name: str, values: Array) -> str:
        self.arrays[name] = values
        return name

    def number(self, name: str, value: float) -> str:
        return self.array(name, np.array(value, self.content.dtype))

    def real(self, name: str, *shape: str | int) -> str:
        return self._input(name, self.kind, shape)

    def rows(self, name: str, *shape: str | int) -> str:
        return self._input(name, self.onnx.TensorProto.INT64, shape)

    def mask(self, name: str, *shape: str | int) -> str:
        return self._input(name, self.onnx.TensorProto.BOOL, shape)

    def _input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def rating(self, score: str, out: str = "") -> str:
        """Link, scaling and clipping of a score."""
        assert self.content.link is not None
        scaled = self.node("Mul", self.node(LINKED[self.content.link], score), self.number("scale", self.content.scale))
        moved = self.node("Add", scaled, self.number("mean", self.content.mean))
        ends = (self.number(name, getattr(self.content, name)) for name in ("low", "high"))
        return self.node("Clip", moved, *ends, out=out)

    def model(self, outputs: Mapping[str, tuple[int, Sequence[str | int]]], name: str) -> Any:
        """The model of this graph, checked."""
        helper, numpy_helper = self.onnx.helper, self.onnx.numpy_helper
        made = [helper.make_tensor_value_info(one, *about) for one, about in outputs.items()]
        arrays = [numpy_helper.from_array(np.ascontiguousarray(array), one) for one, array in self.arrays.items()]
        graph = helper.make_graph(self.nodes, name, self.inputs, made, arrays)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="fedmc", producer_version=__version__
        )
        helper.set_model_props(model, {"model": json.dumps(dict(self.content.about))})
        self.onnx.checker.check_model(model)
        return model


class _User(NamedTuple):
    """A user in a graph: the names of its factors and its bias, or of the items it had."""

    vector: str
    bias: str | None


def write(folder: Path, content: Content) -> dict[str, str]:
    """Write the graphs, and the tables of the ids of their rows."""
    onnx = _library()
    if content.link is None:
        raise InputError(
            f"the link of loss {content.about['loss']} has no operator in ONNX: choose to='npz' or 'parquet', which "
            "hold the scores before the link"
        )
    _check_size(content)
    makers = {PREDICT_VECTOR: (_predict, False), RECOMMEND_VECTOR: (_recommend, False)}
    if content.users is not None and content.users.factors is not None:
        makers = {PREDICT: (_predict, True), RECOMMEND: (_recommend, True)} | makers
    for name, (make, known) in makers.items():
        onnx.save(make(_Graph(onnx, content), known), str(folder / name))
    told = {name: TOLD[name] for name in makers}
    if content.items.weights is not None:
        told = {name: text.replace("factors, bias", "had") for name, text in told.items()}
    return told | write_ids(folder, content)


def _user(graph: _Graph, known: bool, size: str) -> _User:
    """The user: one that the graph knows, or whose vector is given."""
    items, users = graph.content.items, graph.content.users
    if known:
        assert users is not None
        assert users.factors is not None
        assert users.bias is not None
        row = graph.rows("user", size)
        factors, bias = graph.array("user_factors", users.factors), graph.array("user_bias", users.bias)
        return _User(graph.node("Gather", factors, row), graph.node("Gather", bias, row))
    if items.factors is None:
        return _User(graph.real("had", size, len(items.ids)), None)
    return _User(graph.real("factors", size, items.factors.shape[1]), graph.real("bias", size))


def _vectors(graph: _Graph) -> str:
    """The rows that a user's vector is multiplied with."""
    items = graph.content.items
    vectors = items.factors if items.weights is None else items.weights
    assert vectors is not None
    return graph.array("item_vectors", vectors)


def _predict(graph: _Graph, known: bool) -> Any:
    """A graph that predicts ratings of pairs."""
    user, item = _user(graph, known, "pairs"), graph.rows("item", "pairs")
    products = graph.node("Mul", user.vector, graph.node("Gather", _vectors(graph), item))
    score = graph.node("ReduceSum", products, graph.array("last", np.array([-1])), keepdims=0)
    bias = graph.content.items.bias
    if user.bias is not None and bias is not None:
        of_item = graph.node("Gather", graph.array("item_bias", bias), item)
        score = graph.node("Add", graph.node("Add", score, of_item), user.bias)
    graph.rating(score, out="prediction")
    return graph.model({"prediction": (graph.kind, ITEM_SHAPE)}, "predict")


def _recommend(graph: _Graph, known: bool) -> Any:
    """A graph of the n best items; where fewer are left, the item is -1 and the score NaN."""
    count, bias = len(graph.content.items.ids), graph.content.items.bias
    user = _user(graph, known, "users")
    scores = graph.node("MatMul", user.vector, graph.node("Transpose", _vectors(graph)))
    if user.bias is not None and bias is not None:
        own = graph.node("Unsqueeze", user.bias, graph.array("last", np.array([-1])))
        scores = graph.node("Add", graph.node("Add", scores, graph.array("item_bias", bias)), own)
    number = graph.node("Min", graph.rows("n", 1), graph.array("items_at_most", np.array([count])))
    left = graph.node("Where", graph.mask("exclude", "excluding", count), graph.number("none", -np.inf), scores)
    graph.node("TopK", left, number, out="best", also=["columns"])
    missing = graph.node("IsInf", "best", detect_positive=0)
    graph.node("Where", missing, graph.number("nan", np.nan), graph.rating("best"), out="scores")
    graph.node("Where", missing, graph.array("no_item", np.array(-1)), "columns", out="items")
    shape = ("users", "best items")
    return graph.model({"items": (graph.onnx.TensorProto.INT64, shape), "scores": (graph.kind, shape)}, "recommend")


def _check_size(content: Content) -> None:
    parts = [content.items.factors, content.items.bias, content.items.weights]
    parts += [] if content.users is None else [content.users.factors, content.users.bias]
    size = sum(one.nbytes for one in parts if one is not None)
    require(
        size < MOST - (1 << 20),
        f"the factors take {size / 1e9:.1f} GB, and an ONNX file at most 2 GB: choose items_only=True, "
        "dtype='float32', or to='npz' or 'parquet'",
    )


def _library() -> Any:
    try:
        import onnx
    except ImportError:
        raise InputError("ONNX graphs need the package onnx: pip install 'fedmc[onnx]'") from None
    return onnx
