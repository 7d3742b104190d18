"""Logging of long-running commands."""

from __future__ import annotations

import logging

from fedmc.federation.logs import OneLine


def log_to_stderr() -> None:
    """Log fedmc's messages to stderr, and only errors of Flower."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logger = logging.getLogger("fedmc")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
