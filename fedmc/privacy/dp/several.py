"""The epsilon of a person whom several organisations know: each protects its own users, as if nobody else did."""

from __future__ import annotations

from fedmc.errors import InputError
from fedmc.privacy.dp.mechanism import calibrate, spent


def epsilon_of(organisations: int, epsilon: float, delta: float, noise_shared: bool) -> float:
    """The epsilon, at the same delta, of a person who is a user of this many organisations of a run.

    If each adds all the noise itself, these are so many independent releases. If they share the noise, their releases
    are added up before anybody sees them: the person's parts may point the same way, under noise that is there once.
    """
    multiplier = calibrate(epsilon, delta)
    return spent([multiplier / organisations] if noise_shared else [multiplier] * organisations, delta)


def sentence(epsilon: float, delta: float, noise_shared: bool) -> str:
    """What a privacy claim says about such a person."""
    try:
        two, three = (epsilon_of(k, epsilon, delta, noise_shared) for k in (2, 3))
    except InputError:  # the accountant is not installed; a run needs it and will say so
        return "For a person known to several clients, epsilon is larger"
    return f"For a person known to two clients epsilon is {two:.3g}, to three {three:.3g}"
