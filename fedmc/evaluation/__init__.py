"""Baselines that pool the data, experiments and comparisons."""
