"""Who gets how much of an answer that has room for so many: a port with a million events leaves room for the others."""

from __future__ import annotations

from collections.abc import Sequence


def fair_shares(wanted: Sequence[int], most: int) -> list[int]:
    """How many of at most `most` each one gets: never more than it wants, and equal shares where there is too little."""
    shares = [0] * len(wanted)
    for served, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[place] = min(wanted[place], most // (len(wanted) - served))
        most -= shares[place]
    return shares
