"""Where the parts of a layered drawing go: columns from left to right, as few crossings and bends as little effort gives.

The layers are given. Edges that span several layers pass through a lane of their own in each between; edges from one place
share their lanes. Positions come from sweeps over the layers, forth and back: everything wishes to stand level with what it
is joined to, layers are sorted by those wishes, and the nearest positions (in the least-squares sense) that keep the
distances are found by pooling neighbours that are too close (Sugiyama, Tagawa and Toda 1981 for the scheme).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Place", "arrange"]

_LANE: Final = 5.0  # height of an edge that passes through a layer
_GAP: Final = 9.0
_SWEEPS: Final = 10
_WORK: Final = 80_000  # places visited in all sweeps: large drawings get fewer
_MOST_LANES: Final = 40_000  # in larger drawings the longest edges run straight through, behind the boxes


@dataclass(eq=False, slots=True)
class Place:
    """A box, or a lane where an edge passes through a layer; ``y`` is the middle."""

    layer: int
    height: float
    lane: bool = False
    y: float = 0.0
    before: list[Place] = field(default_factory=list)
    after: list[Place] = field(default_factory=list)


def arrange(boxes: Sequence[Place], edges: Sequence[tuple[Place, Place]]) -> dict[tuple[Place, Place], list[Place]]:
    """Give boxes their ``y``; for each edge the lanes that it passes, in order. Edges lead to later layers."""
    spans: dict[Place, int] = {}
    for source, target in edges:
        spans[source] = max(spans.get(source, 0), target.layer - source.layer - 1)
    longest = max(spans.values(), default=0)
    while sum(s for s in spans.values() if s <= longest) > _MOST_LANES:
        longest //= 2
    lanes: dict[tuple[Place, int], Place] = {}
    routes: dict[tuple[Place, Place], list[Place]] = {}
    for source, target in edges:
        route = []
        last = source
        for number in range(source.layer + 1, target.layer) if spans[source] <= longest else ():
            lane = lanes.get((source, number))
            if lane is None:
                lane = lanes[source, number] = Place(number, _LANE, True)
                _join(last, lane)
            route.append(lane)
            last = lane
        _join(last, target)
        routes[source, target] = route
    places = [*boxes, *lanes.values()]
    layers: list[list[Place]] = [[] for _ in range(max((p.layer for p in places), default=-1) + 1)]
    for place in places:
        layers[place.layer].append(place)
    for layer in layers:
        _settle(layer, [0.0] * len(layer))
    sweeps = max(2, min(_SWEEPS, _WORK // max(1, len(places))))
    for sweep in range(sweeps):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _sweep(layer, sweep % 2 == 0)
    for layer in layers:  # at last between both sides, without changing any order
        _settle(layer, [_mean([*p.before, *p.after], p.y) for p in layer])
    top = min((p.y - p.height / 2 for p in places), default=0.0)
    for place in places:
        place.y -= top
    return routes


def _join(a: Place, b: Place) -> None:
    a.after.append(b)
    b.before.append(a)


def _mean(places: Sequence[Place], otherwise: float) -> float:
    return sum([p.y for p in places]) / len(places) if places else otherwise


def _sweep(layer: list[Place], forth: bool) -> None:
    """Sort a layer by where its places wish to be, and put them as near as they fit."""
    wishes = {p: _mean(p.before if forth else p.after, p.y) for p in layer}
    layer.sort(key=wishes.__getitem__)
    _settle(layer, [wishes[p] for p in layer])


def _settle(layer: list[Place], wishes: list[float]) -> None:
    """The positions nearest to the wishes that keep the order and the distances."""
    offset, offsets = 0.0, []
    for k, place in enumerate(layer):
        if k:
            other = layer[k - 1]
            offset += (other.height + place.height) / 2 + (_LANE if other.lane and place.lane else _GAP)
        offsets.append(offset)
    pools: list[list[float]] = []  # sum of weighted wishes, weight, number of places
    for place, wish, shift in zip(layer, wishes, offsets, strict=True):
        weight = 3.0 if place.lane else 1.0  # straight lanes matter more
        pools.append([(wish - shift) * weight, weight, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            total, weight, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += weight
            pools[-1][2] += count
    k = 0
    for total, weight, count in pools:
        for _ in range(int(count)):
            layer[k].y = total / weight + offsets[k]
            k += 1
