"""Tests. Before anything of numba is imported: one folder of compiled kernels for all processes of a test run."""

import os
from pathlib import Path

os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".numba_cache"))
