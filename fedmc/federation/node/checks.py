"""What a node refuses before it looks at any rating, and the status word that the server gets for it."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmc import __version__
from fedmc.algorithms.messages import Broadcast
from fedmc.errors import InputError
from fedmc.federation.wire import RUN, Request, hash_of

if TYPE_CHECKING:
    from fedmc.federation.node.node import Node

log = logging.getLogger("fedmc.node")

MOST = 1e12  # no honest number is as large
TASKS = ("moments", "scale", "start", "round", "measure", "finish")


class RefusedError(Exception):
    """With the status word."""


def check(node: Node, request: Request) -> None:
    """Refuse what is not even looked at."""
    cast: Broadcast = request.cast
    settings = cast.settings
    if request.version != __version__:
        raise RefusedError("wrong-version")
    if cast.V.ndim != 2:
        raise RefusedError("wrong-settings")
    if request.catalogue != node.catalogue or cast.V.shape[0] != node.shard.by_user.shape[1]:
        raise RefusedError("wrong-catalogue")
    if cast.task not in TASKS or cast.V.shape[1] != settings.width or not 0 <= request.client < cast.clients:
        raise RefusedError("wrong-settings")
    if not re.fullmatch(RUN, request.run):  # it names a file here
        raise RefusedError("wrong-settings")
    check_numbers(cast)
    check_privacy(node, request)
    ratings, began_with = node.store.begun_with(request.run, node.ratings, hash_of(settings))
    if began_with != hash_of(settings):
        raise RefusedError("wrong-settings")
    if ratings != node.ratings:
        raise RefusedError("changed-ratings")
    ended = node.store.ended(request.run)
    if ended is not None:
        raise RefusedError(ended)


def check_privacy(node: Node, request: Request) -> None:
    """The kind of run is one that was agreed to, and what it hides is asked for in hiding."""
    cast = request.cast
    hidden = cast.settings.hidden and cast.task != "finish"
    if cast.settings.privacy not in node.accepted or hidden != (request.invitation is not None):
        raise RefusedError("wrong-privacy")
    if cast.settings.private:
        check_private(node, cast)
    if cast.settings.private and request.invitation and len(request.invitation.cohort) != cast.clients:
        raise RefusedError("not-hidden")  # each adds its share of the noise, so that all of them must be there
    if hidden and (node.identity is None or cast.full):
        raise RefusedError("wrong-member" if node.identity is None else "wrong-privacy")
    if hidden and node.identity is not None:
        clients = len(node.identity.pinned)
        if (request.client, cast.clients) != (node.identity.number, clients):
            raise RefusedError("wrong-member")


def check_private(node: Node, cast: Broadcast) -> None:
    """Nothing leaves that is not noised, and nothing that a user is part of beyond its own ratings."""
    method: Any = cast.settings.make_method()
    if cast.task not in ("round", "finish"):
        raise RefusedError("wrong-privacy")
    if node.shard.test is not None or node.shard.validation is not None:
        log.error("ratings that are held out depend on other users: leave `test` out of config.toml for dp")
        raise RefusedError("wrong-privacy")
    try:
        method.check_cast(cast)
    except InputError as error:
        log.error("round %s: %s", cast.round, error)
        raise RefusedError("wrong-settings") from None


def check_numbers(cast: Broadcast) -> None:
    """Refuse, before any rating is looked at, numbers under which what fails would depend on the ratings."""
    arrays = [cast.V, np.asarray(cast.beta), *([] if cast.memory is None else [cast.memory])]
    if not all(
        array.dtype.kind == "f" and np.isfinite(array).all() and np.abs(array).max() <= MOST for array in arrays
    ):
        raise RefusedError("diverged")
    scaling = cast.scaling
    if not np.isfinite([scaling.mean, scaling.scale]).all() or not scaling.scale > 0 or np.min(cast.beta) <= 0:
        raise RefusedError("wrong-settings")
