"""Compiled loops, each beside its plain numpy twin; the only importers of numba."""
