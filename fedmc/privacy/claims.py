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
