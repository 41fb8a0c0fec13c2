"""What the set of origin ranks suggests: the same place everywhere, a part of the layout, or one rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from samebits.fingerprint.header import Coordinates
from samebits.fingerprint.ranks import ranks_text

_AXES = ("tensor", "pipeline", "data", "expert", "context")


def pattern(origins: Collection[int], places: Mapping[int, Coordinates]) -> str:
    """One sentence. places: of all ranks of the arm."""
    world = len(places)
    if not origins:
        return "No rank parts by itself: the cause lies outside the traced ranks or steps."
    if world == 1:
        return "There is one rank: whether others would part as well is not known."
    if len(origins) == world:
        return f"All {world} ranks part at this place by themselves: it is the operation, not a rank or a node."
    if len(origins) == 1:
        rank = next(iter(origins))
        return f"Rank {rank} alone parts by itself: what only this rank does, or its hardware. {_other_nodes()}"
    if shared := _shared(origins, places):
        return f"Exactly the ranks of {shared} part by themselves: their part of the model, or where they run."
    text = ranks_text(origins)
    return f"Ranks {text} of {world} part by themselves: topology, placement, or the order of a reduction."


def _other_nodes() -> str:
    return "A run on other nodes tells the two apart."


def _shared(origins: Collection[int], places: Mapping[int, Coordinates]) -> str:
    """`pipeline 1`, where the origins are all ranks with that coordinate, and no others."""
    for axis in _AXES:
        values = {getattr(places[rank], axis) for rank in origins}
        if len(values) != 1:
            continue
        value = values.pop()
        if {rank for rank, place in places.items() if getattr(place, axis) == value} == set(origins):
            return f"{axis} rank {value}"
    return ""
