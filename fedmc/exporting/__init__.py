"""Exports of a model: tables, indexes and graphs that predict and recommend without fedmc."""

from fedmc.exporting.writing import FORMS, Form, export

__all__ = ["FORMS", "Form", "export"]
