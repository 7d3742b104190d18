"""What a run may claim, in a sentence that is said before it begins."""

from __future__ import annotations

from fedmc.algorithms.settings import Settings


def claim(settings: Settings) -> str:
    if settings.private:
        noise = (
            "each client adds its share of the noise, which holds if two thirds of them do"
            if settings.hidden
            else "each client adds all the noise itself"
        )
        bound = f"(epsilon {settings.epsilon:g}, delta {settings.delta:g})"
        return (
            f"privacy {settings.privacy}: what leaves a client is {bound}-differentially private for each of its "
            f"users, over {settings.dp_rounds} rounds; {noise}"
        )
    if settings.hidden:
        return (
            f"privacy secagg: the server sees sums over cohorts of at least {settings.min_cohort} clients, more than "
            "two thirds of whom get through, and no client's own message. What sums and model say of all of them "
            "together is not hidden"
        )
    return (
        "privacy plain: ratings and user factors stay at home, but the server sees each client's message, and can tell "
        "from it what was rated. Nothing is claimed"
    )


TRAVELS = {
    "plain": "The server saw each client's own updates.",
    "secagg": "The updates were masked: the server saw only their sums over cohorts.",
    "dp": "Each client added noise to its updates for differential privacy; the server saw each client's noisy ones.",
    "dp+secagg": "The updates were masked and noisy: the server saw only noisy sums over cohorts.",
}


def what_travels(privacy: str) -> str:
    """What the server saw of the clients' updates in a run of this privacy mode, in a sentence."""
    return TRAVELS[privacy]
