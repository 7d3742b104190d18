"""Figures and one self-contained HTML page, for a run or for a comparison."""
