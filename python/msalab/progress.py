# SPDX-License-Identifier: MIT
"""Lines about long work, as experiments/driver/progress.h has them."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_PER_LINE = 5


def clock_text(seconds: float) -> str:
    whole = round(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole // 60 % 60:02d}:{whole % 60:02d}"


class Progress:
    """Of `total` units of work, whatever they are. Lines go to note(), one every few seconds."""

    def __init__(self, note: Callable[[str], None], total: float, clock=time.monotonic):
        self._note, self._total, self._clock = note, total, clock
        self._done = 0.0
        self._start = self._last = clock()

    def left(self) -> str:
        """", 3:10 left", or nothing where nobody knows yet."""
        seconds, share = self._clock() - self._start, self._done / max(self._total, 1)
        if share <= 0 or share >= 1 or seconds < SECONDS_PER_LINE:
            return ""
        return f", {clock_text(seconds * (1 - share) / share)} left"

    def count(self, units: float):
        """So many more are done."""
        self._done += units

    def advance(self, units: float, what: str):
        """`what` is done, and so many units with it."""
        self.count(units)
        now = self._clock()
        if now - self._last >= SECONDS_PER_LINE:
            self._last = now
            self._note(f"{what}: {100 * self._done / self._total:.0f} %{self.left()}")
