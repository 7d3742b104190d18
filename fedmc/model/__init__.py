"""A fitted model: predict with intervals, recommend, fold in new users, complete a table, save and load."""

from fedmc.model.ids import find_ids
from fedmc.model.loading import load
from fedmc.model.model import Model

__all__ = ["Model", "find_ids", "load"]
