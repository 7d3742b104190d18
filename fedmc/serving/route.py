"""Endpoints whose bodies pydantic reads itself: what the schema refuses never becomes a Python object.

FastAPI would parse the whole body first. Thousands of empty lists then take a second, in which nobody else is answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from starlette.responses import Response

from fedmc.serving import problems


class JsonRoute(APIRoute):
    """The endpoint is `async def name(ask: Request schema) -> Answer schema`, or has no parameter."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        hints = get_type_hints(self.endpoint)
        endpoint: Callable[..., Coroutine[Any, Any, BaseModel]] = self.endpoint
        asked: type[BaseModel] | None = hints.get("ask")

        async def handle(request: Request) -> Response:
            if asked is None:
                return _answer(await endpoint())
            try:
                ask = asked.model_validate_json(await request.body())
            except ValidationError as error:
                return problems.of_validation(error.errors(include_url=False))
            return _answer(await endpoint(ask))

        return handle


def _answer(found: BaseModel | Response) -> Response:
    if isinstance(found, Response):
        return found
    try:
        text = found.model_dump_json(exclude_none=True)
    except PydanticSerializationError:  # an id or a title has half of a character outside the basic plane
        text = json.dumps(found.model_dump(exclude_none=True))
    return Response(text, media_type="application/json")
