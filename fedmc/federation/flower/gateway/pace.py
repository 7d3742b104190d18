"""How often a key may make calls that cost it nothing and the SuperLink a few milliseconds each."""

from __future__ import annotations

import time

from fedmc.federation.flower.gateway.auth import Member
from fedmc.federation.flower.gateway.http import Refusal
from fedmc.federation.flower.gateway.limits import Limits

PACED = ("activate-node", "deactivate-node", "send-node-heartbeat", "get-run")


class Pace:
    """A bucket for each key: a call takes one token, and they come back at a constant rate."""

    def __init__(self, limits: Limits) -> None:
        self.rate, self.burst = limits.calls_rate, limits.calls_burst
        self.keys: dict[bytes, tuple[float, float]] = {}  # tokens, and when they were counted

    def take(self, member: Member, name: str) -> None:
        """Count a call; a Refusal if there were too many."""
        if name not in PACED:
            return
        key, now = member.pem, time.monotonic()
        left, then = self.keys.get(key, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        self.keys[key] = left - 1 if left >= 1 else left, now
        if left < 1:
            raise Refusal(429, f"{member.name} calls {name} more than {self.rate} times a second")
