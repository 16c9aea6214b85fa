"""The picture of the tour: losses, and the recorded graph of fine-tuning with the place where detach() cuts it.

This module alone imports matplotlib, which is of the extra "plot".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.text import Text

if TYPE_CHECKING:
    import jitgrad as jg
    from jitgrad.tour import Learning

__all__ = ["ENDINGS", "Recorded", "draw", "recorded"]

ENDINGS: Final = frozenset(FigureCanvasBase.get_supported_filetypes())

_LIVE, _LEAF, _FROZEN, _CUT = "#1f5fa8", "#2e7d32", "#9a9a9a", "#c62828"


class Recorded(NamedTuple):
    """A recorded graph: labels by key, edges from operand to result, and which keys are leaves."""

    labels: dict[int, str]
    edges: list[tuple[int, int]]
    leaves: set[int]
    order: list[int]
    """Results before their operands."""


def recorded(result: jg.Tensor, names: Mapping[str, jg.Tensor]) -> Recorded:
    """Return what backward() from ``result`` would walk, by way of ``grad_fn.next_functions``."""
    found = Recorded({}, [], set(), [])
    called = {id(tensor._leaf): name for name, tensor in names.items()}
    start = result.grad_fn
    waiting: list[Any] = [] if start is None else [start]
    while waiting:
        node = waiting.pop()
        key = id(node)
        if key in found.labels:
            continue
        following = getattr(node, "next_functions", None)
        if following is None:  # where a gradient arrives
            found.labels[key] = called.get(key, f"leaf {node.shape}")
            found.leaves.add(key)
            continue
        found.labels[key] = node.name
        for operand, _ in following:
            found.edges.append((id(operand), key))
            waiting.append(operand)
    found.order.extend(_results_first(found))
    return found


def _results_first(graph: Recorded) -> list[int]:
    """Keys such that every result stands before its operands."""
    operands = defaultdict(list)
    uses = dict.fromkeys(graph.labels, 0)
    for operand, result in graph.edges:
        operands[result].append(operand)
        uses[operand] += 1
    ready = [key for key, count in uses.items() if count == 0]
    order = []
    while ready:
        key = ready.pop()
        order.append(key)
        for operand in operands[key]:
            uses[operand] -= 1
            if uses[operand] == 0:
                ready.append(operand)
    return order


def draw(learning: Learning, path: Path) -> None:
    """Draw what the tour learned into a file.

    Raises:
        OSError: the file cannot be written.
    """
    loss, hidden, names = learning.fine_tuning
    live, frozen = recorded(loss, names), recorded(hidden, names)
    right = _places(live, 0.0)
    cut = min(x for x, _ in right.values()) - 0.9
    left = _places(frozen, cut - 0.9)
    columns = 1.0 - min(x for x, _ in left.values())
    figure = Figure(figsize=(max(12.0, 1.25 * columns), 8.0), layout="constrained")
    losses, graph = figure.subplots(2, 1, height_ratios=(1.4, 1))
    _draw_losses(losses, learning.loss_before, learning.loss)

    boxes = _boxes(graph, live, right, _LIVE, _LEAF) | _boxes(graph, frozen, left, _FROZEN, _FROZEN)
    _draw_cut(graph, cut, [*left.values(), *right.values()])
    # detach() hands the value of the hidden layer over, and nothing back; the deepest operation reads it
    reader = min((key for key in right if key not in live.leaves), key=lambda key: right[key][0])
    figure.draw_without_rendering()  # arrows end at the borders of boxes, which are known from here on
    for part, places, color in ((live, right, _LIVE), (frozen, left, _FROZEN)):
        for operand, result in part.edges:
            _arrow(graph, boxes[operand], boxes[result], color, places[result][0] - places[operand][0] > 1)
    _arrow(graph, boxes[frozen.order[0]], boxes[reader], _FROZEN)
    figure.savefig(path, dpi=120)


def _draw_losses(axes: Axes, before: Sequence[float], after: Sequence[float]) -> None:
    count = len(before)
    axes.semilogy(range(1, count + 1), before, color=_LEAF, marker=".", label="pre-training, digits 0 to 4")
    axes.semilogy(
        range(count + 1, count + len(after) + 1),
        after,
        color=_LIVE,
        marker=".",
        label="fine-tuning a new head on the frozen features, digits 5 to 9",
    )
    axes.axvline(count + 0.5, color=_CUT, linestyle="--", linewidth=1.5)
    axes.set(xlabel="epoch", ylabel="mean loss", title="Cross-entropy on the digits that are learned from")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_cut(axes: Axes, cut: float, places: Sequence[tuple[float, float]]) -> None:
    xs, ys = zip(*places, strict=True)
    low, high = min(ys) - 0.6, max(ys) + 0.8
    axes.plot([cut, cut], [low, high], color=_CUT, linestyle="--", linewidth=2)
    axes.text(cut, high + 0.05, "detach()", color=_CUT, ha="center", va="bottom", fontsize=13, fontweight="bold")
    axes.text(cut - 0.15, low, "frozen: values pass, gradients do not", color="#6a6a6a", ha="right", va="center")
    axes.text(cut + 0.15, low, "recorded: backward() walks it from right to left", color=_LIVE, ha="left", va="center")
    axes.set(xlim=(min(xs) - 0.6, max(xs) + 0.6), ylim=(low - 0.3, high + 0.5))
    axes.set_title("The graph of the fine-tuning loss")
    axes.axis("off")


def _places(graph: Recorded, right: float) -> dict[int, tuple[float, float]]:
    """Place operations one column left of their leftmost reader, the result at ``right``, and leaves under readers."""
    readers = defaultdict(list)
    for operand, result in graph.edges:
        readers[operand].append(result)
    column: dict[int, int] = {}
    rows: dict[int, int] = defaultdict(int)  # how many boxes a column has already
    places: dict[int, tuple[float, float]] = {}
    for is_leaf in (False, True):  # leaves go below the operations of their column
        for key in graph.order:
            if (key in graph.leaves) is is_leaf:
                column[key] = max((column[r] + (not is_leaf) for r in readers[key]), default=0)
                places[key] = (right - column[key], -1.0 * rows[column[key]])
                rows[column[key]] += 1
    return places


def _boxes(
    axes: Axes, graph: Recorded, places: Mapping[int, tuple[float, float]], color: str, leaf_color: str
) -> dict[int, Text]:
    boxes = {}
    for key, (x, y) in places.items():
        leaf = key in graph.leaves
        shade = leaf_color if leaf else color
        frame = {"boxstyle": "round,pad=0.4", "facecolor": "white" if leaf else shade, "edgecolor": shade}
        text = graph.labels[key].replace("_", "\n").replace(" ", "\n")
        ink = shade if leaf else "white"
        boxes[key] = axes.text(x, y, text, ha="center", va="center", fontsize=10, color=ink, bbox=frame)
    return boxes


def _arrow(axes: Axes, start: Text, end: Text, color: str, bent: bool = False) -> None:
    """An arrow between two boxes; one that passes over others is bent."""
    style = {
        "arrowstyle": "-|>",
        "color": color,
        "linewidth": 1.5,
        "patchA": start.get_bbox_patch(),
        "patchB": end.get_bbox_patch(),
        "connectionstyle": "arc3,rad=-0.35" if bent else "arc3",
    }
    axes.annotate("", xy=end.get_position(), xytext=start.get_position(), arrowprops=style)
