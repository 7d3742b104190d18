"""Evaluation: baselines on pooled data, experiments and comparisons."""
