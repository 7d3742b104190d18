"""Compiled loops, most with a plain numpy twin in `reference`. Only this package imports numba."""
