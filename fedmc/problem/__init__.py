"""The optimisation problem: losses, penalties and constraints, scaling, and the sub-problem of one half."""
