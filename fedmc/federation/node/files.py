"""The files that config.toml names, and the titles of items among them."""

from __future__ import annotations

from pathlib import Path

from fedmc.data.addresses import present
from fedmc.data.catalogue import Catalogue
from fedmc.data.feature_rows import Features
from fedmc.data.features import only_titles, open_table
from fedmc.federation.setup.layout import NodeConfig
from fedmc.model import titles
from fedmc.types import Array


def located(config: NodeConfig, path: str) -> Path:
    """A file as a path: relative to the folder if it is there, else as it is written."""
    inside = config.folder / path
    return inside if present(inside) else Path(path)


def words(config: NodeConfig, source: str) -> str:
    """A file as a path if it is there, else as it is written, such as an address."""
    path = located(config, source)
    return str(path) if present(path) else source


def own_titles(config: NodeConfig) -> Features | None:
    """The organisation's own table of titles; nothing of it is sent, and it changes no result."""
    return None if config.items is None else only_titles(open_table(words(config, config.items), "item"))


def known_titles(config: NodeConfig, catalogue: Catalogue) -> Array | None:
    """The titles of the catalogue or, where it has none, of the organisation's own table."""
    own = own_titles(config)
    before = titles.of_items(catalogue.items, None if own is None else own.like(catalogue.items))
    return titles.of_items(catalogue.items, catalogue.features, (catalogue.items, before))
