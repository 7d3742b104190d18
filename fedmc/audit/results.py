"""The results of attacks, with explanations in plain language."""

from __future__ import annotations

from typing import NamedTuple

from fedmc.privacy import modes

EACH = "each client's messages"
MASKED = "one masked upload"

HARDLY = 0.02  # an advantage up to this value reveals hardly anything about a single client


def sum_of(clients: int) -> str:
    return f"the sum of {clients} clients"


class Linked(NamedTuple):
    """The result of linking items to persons."""

    separated: int  # persons with at least two linked items, all of them correct
    users: int
    right: int  # (person, item) pairs that were linked correctly
    said: int
    ratings: int


class Listed(NamedTuple):
    """The result of reading off whole lists of items."""

    whole: int  # persons whose list is known, all of it
    users: int
    right: int  # (person, item) pairs that were named correctly
    said: int
    ratings: int


class Attributed(NamedTuple):
    """The result of group testing: proofs about (client, item) pairs."""

    sums: int
    rated: int  # pairs of which it is proven that the client rated the item
    pairs: int  # pairs of a client and an item that it rated
    unrated: int  # pairs of which it is proven that the client did not rate the item
    wrong: int  # proofs that are wrong
    named: int  # pairs of rare items that were proven
    rare: int  # pairs of rare items


class Finding(NamedTuple):
    """One row of the table. `attack` and `guess` are shares of what `measure` names; `guess` None: no baseline.

    `supposed` marks a hypothetical case that the configuration prevents; it shows why.
    """

    what: str
    sees: str
    measure: str
    attack: float
    guess: float | None
    meaning: str
    supposed: bool = False

    @property
    def advantage(self) -> float:
        return self.attack - (self.guess or 0.0)

    def record(self) -> dict[str, object]:
        """The finding for JSON, with NaN as null."""
        plain = self._asdict() | {"advantage": self.advantage}
        return {name: None if value != value else value for name, value in plain.items()}


def items(sees: str, attack: float, guess: float, clients: int) -> Finding:
    """Which items were rated: AUC."""
    return Finding("which items were rated", sees, "rated item told from unrated", attack, guess,
                   _told(attack, guess, f"the users of a client rated (mean over {clients} clients)"))  # fmt: skip


def newcomers(size: int, batch: bool, attack: float, guess: float, clients: int) -> Finding:
    who = f"{size} newcomers together" if batch else f"one newcomer and {size - 1} others"
    told = _told(attack, guess, f"a newcomer's users rated (mean over {clients} newcomers)")
    why = "" if batch else " This is why newcomers wait for each other in this mode."
    measure = "rated item told from unrated"
    return Finding("which items a newcomer rated", f"the sum of {who}", measure, attack, guess, told + why, not batch)


def _told(attack: float, guess: float, whose: str) -> str:
    if attack != attack:  # NaN
        return "There is nothing to find out: together, the users of each client rated all items."
    odds = f"Of an item that was rated and one that was not, it picks the right one {_of_100(attack)}"
    beside = f"by popularity alone {_of_100(guess)}"
    if attack >= 0.999:
        return f"The server knows which items {whose}. {odds}; {beside}."
    if attack - guess > HARDLY:
        return f"The server learns something about which items {whose}. {odds}; {beside}."
    if abs(attack - 0.5) < 0.05:
        return f"The server learns nothing about which items {whose}. {odds}, as with a coin; {beside}."
    return f"The server learns hardly more than popularity tells about which items {whose}. {odds}; {beside}."


def ratings(sees: str, attack: float, guess: float | None, clients: int) -> Finding:
    meaning = f"Of the ratings of {clients} clients with a single user, {_of_100(attack, 'in')} are read off exactly"
    beside = "." if guess is None else f"; guessing what the item usually gets is right {_of_100(guess, 'in')}."
    return Finding("the ratings themselves", sees, "ratings read off exactly", attack, guess, meaning + beside)


def persons(sees: str, found: Linked, clients: int) -> Finding:
    """Items linked to one person. Popularity does not help here, so the baseline is 0."""
    share = found.separated / max(found.users, 1)
    if not found.said:
        meaning = f"None of the {found.users:,} users (in {clients} clients) stands apart from the others."
    else:
        meaning = (
            f"{found.separated:,} of {found.users:,} users (in {clients} clients) stand apart, without a name: "
            f"{found.right:,} of their {found.ratings:,} ratings are linked to one person each, "
            f"{_of_100(found.right / found.said, 'in')} of the links are right."
        )
    return Finding("which items one person rated", sees, "users told apart", share, 0.0, meaning)


def item_lists(sees: str, found: Listed, clients: int) -> Finding:
    """Whole lists of items. Popularity names nobody's list, so the baseline is 0."""
    share = found.whole / max(found.users, 1)
    who = f"of the {found.users:,} users (in {clients} clients)"
    if not found.said:
        meaning = f"The list of all rated items but rare ones is read off for none {who}."
    else:
        meaning = (
            f"The list of all rated items but rare ones is read off for {found.whole:,} {who}: {found.right:,} of "
            f"their {found.ratings:,} ratings (recall {_of_100(found.right / found.ratings, 'in')}), "
            f"{_of_100(found.right / found.said, 'in')} of the items named are right (precision)."
        )
    return Finding("all items of one person", sees, "whole lists read off", share, 0.0, meaning)


def group_testing(found: Attributed, absences: int) -> Finding:
    """Which client rated an item, proven. Popularity proves nothing, so the baseline is 0."""
    absent = f", with {absences:,} absences" if absences else ", nobody absent"
    meaning = (
        f"{found.rated + found.unrated:,} facts are proven from rows of {found.sums:,} sums that are exactly zero: of "
        f"{found.rated:,} of {found.pairs:,} pairs that the client rated the item, of {found.unrated:,} pairs that it "
        f"did not; {found.wrong:,} of these are wrong. Of items rated by at most 2 clients, {found.named:,} of "
        f"{found.rare:,} ratings are attributed to their client ({_of_100(found.named / max(found.rare, 1), 'in')})."
    )
    sees = f"the sums of {found.sums:,} rounds{absent}"
    share = found.named / max(found.rare, 1)
    return Finding("which client rated an item", sees, "rare items attributed", share, 0.0, meaning)


class Support(NamedTuple):
    """AUC of the best score for "this client rated this item", and of the popularity guess; also for rare items."""

    facts: int
    attack: float
    guess: float
    rare: int
    rare_attack: float
    rare_guess: float


def support(found: Support, absences: int) -> list[Finding]:
    """Which client rated an item, scored from rows around absences, over all facts and over those of rare items."""
    what, sees = "which client rated an item", f"rows around {absences:,} absences"
    kinds = (
        (sees, found.attack, found.guess, f"a client rated ({found.facts:,} pairs of a client and an item)"),
        (f"{sees}, rare items", found.rare_attack, found.rare_guess,
         f"a client rated, of items that at most 2 clients rated ({found.rare:,} such ratings)"),
    )  # fmt: skip
    measure = "rated pair told from unrated"
    return [
        Finding(what, where, measure, attack, guess, _told(attack, guess, whose))
        for where, attack, guess, whose in kinds
        if attack == attack  # there are such items
    ]


def summary(mode: str, findings: list[Finding]) -> list[str]:
    """The conclusion, in a few sentences."""
    said = modes.describe(mode)
    open_to = [f"{one.what} (from {one.sees})" for one in findings if one.advantage > HARDLY and not one.supposed]
    if not open_to:
        return [said, f"No attack tried here beats the guess by more than {HARDLY}. Others may exist."]
    return [said, "The attacks beat guessing at: " + "; ".join(open_to) + "."]


def _of_100(share: float, kind: str = "time") -> str:
    number = f"{100 * share:.1f}".removesuffix(".0")
    return f"{number} times in 100" if kind == "time" else f"{number} in 100"
