"""The wall clock, and the CPU time of this process with all its threads, which other programs do not change."""

from __future__ import annotations

import time


class Clocks:
    """Both clocks, from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> tuple[float, float]:
        """Seconds, and CPU seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu
