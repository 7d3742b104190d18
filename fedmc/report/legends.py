"""What the measures mean, in a sentence each."""

from __future__ import annotations

RMSE = (
    "RMSE is the typical distance between a predicted rating and the one that the user gave, in {unit}: 0 is perfect, "
    "and lower is better."
)
NDCG = (
    "NDCG@20 says how well 20 recommended items match what a user turned to next: 1 is perfect, 0 is a miss, and "
    "higher is better."
)
