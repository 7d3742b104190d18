"""Reports: figures and one self-contained HTML page, for a run or a comparison."""
