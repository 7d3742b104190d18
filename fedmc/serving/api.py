"""The HTTP API: its endpoints, their schema, and the page that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from fedmc import __version__
from fedmc.errors import FedmcError
from fedmc.kernels.threads import available
from fedmc.serving import answers, page, problems, schema
from fedmc.serving.about import health_of
from fedmc.serving.answers import Served, Unanswerable
from fedmc.serving.guard import OPEN, Access, Guard, Limits
from fedmc.serving.holder import Holder
from fedmc.serving.route import JsonRoute

A = TypeVar("A")
R = TypeVar("R")
LOOK = 1.0  # seconds between two looks at the model's file
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Problem} for status in (400, 401, 408, 411, 413, 415, 421, 422, 500, 503)
}
ABOUT = (
    "Recommendations and predictions of a matrix completion model. Requests and answers are JSON. All but `/v1/health` "
    "need the header `Authorization: Bearer TOKEN`. What is refused has a `Problem` as its body."
)


class Answering(Protocol):
    async def __call__(self, function: Callable[[Served, A], R], ask: A) -> R: ...


class Parts(NamedTuple):
    """What the application needs besides the model."""

    access: Access
    limits: Limits = Limits()
    look: float = LOOK
    poke: asyncio.Event | None = None  # set: look for a new model now
    on_ready: Callable[[], None] = lambda: None


def make(holder: Holder, parts: Parts) -> ASGIApp:
    """The application that answers from the holder's model."""
    pool = ThreadPoolExecutor(available(), "answers")  # the loop stays free for other requests

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(holder.watch(parts.look, parts.poke or asyncio.Event()))
        parts.on_ready()
        yield
        watching.cancel()
        pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="fedmc", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False, lifespan=lifespan, responses=REFUSALS,
    )  # fmt: skip

    async def answer(function: Callable[[Served, A], R], ask: A) -> R:
        served = holder.current
        if answers.is_quick(served, ask):
            return function(served, ask)
        return await asyncio.get_running_loop().run_in_executor(pool, function, served, ask)

    app.router.route_class = JsonRoute
    _add_endpoints(app, answer)
    _add_pages(app, holder)
    _add_refusals(app)
    return Guard(app, parts.access, parts.limits)


def _add_endpoints(app: FastAPI, answer: Answering) -> None:
    @app.post("/v1/recommend")
    async def recommend(ask: schema.Recommend) -> schema.Recommended:
        """The best items of a user whom the model knows."""
        return await answer(answers.recommend, ask)

    @app.post("/v1/predict")
    async def predict(ask: schema.Predict) -> schema.Predicted:
        """Ratings of (user, item) pairs, with intervals that hold them with a given probability."""
        return await answer(answers.predict, ask)

    @app.post("/v1/fold-in")
    async def fold_in(ask: schema.FoldIn) -> schema.FoldedIn:
        """Recommendations and predictions for a visitor, from ratings or events. Nothing is kept."""
        return await answer(answers.fold_in, ask)

    @app.post("/v1/similar")
    async def similar(ask: schema.Similar) -> schema.SimilarItems:
        """The items that are most similar to an item, with the cosines of their factors as scores."""
        return await answer(answers.similar, ask)

    @app.post("/v1/find")
    async def find(ask: schema.Find) -> schema.FoundItems:
        """Items by words of their titles."""
        return await answer(answers.find, ask)


def _add_pages(app: FastAPI, holder: Holder) -> None:
    @app.get("/v1/health")
    async def health() -> schema.Health:
        """Whether the server is ready, and which model answers. Needs no token."""
        return health_of(holder)

    described = page.described(app, OPEN)
    shown = page.document(described)
    text = page.as_json(described)

    @app.get("/v1/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(text, media_type="application/json")

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(shown.html, media_type="text/html", headers={"content-security-policy": shown.policy})


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(Unanswerable)
    async def refuse_unanswerable(request: Request, error: Unanswerable) -> Response:
        place = schema.Place(where=error.where, message=str(error))
        return problems.problem(error.code, str(error), [place])

    @app.exception_handler(FedmcError)
    async def refuse(request: Request, error: FedmcError) -> Response:
        return problems.problem("invalid", str(error))

    @app.exception_handler(np.linalg.LinAlgError)
    async def refuse_numbers(request: Request, error: np.linalg.LinAlgError) -> Response:
        return problems.problem("invalid", "these numbers have no solution: send ratings of a moderate size")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return problems.problem("internal", "the request failed: see the server's log")

    @app.exception_handler(HTTPException)
    async def refuse_request(request: Request, error: HTTPException) -> Response:
        return problems.of_status(error.status_code, str(error.detail), error.headers)
