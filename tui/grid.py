"""Where each rank stands on the screen: a mesh as rows and groups of columns. Pure.

What stands at one place is a slot: one rank, or with thousands of ranks those of a node or of the
innermost axis, of which the worst state is shown.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CARD_WIDTH = 19
CARD_HEIGHT = 4
MOST_CARDS = 64
MOST_CELLS = 2048

Zoom = Literal["cards", "wide", "narrow", "groups"]
ZOOMS: tuple[Zoom, ...] = ("cards", "wide", "narrow", "groups")
"""A card of a rank, two columns of a rank, one column of a rank, one cell of many ranks."""

Axes = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Positions of slots for one width.

    `rows` holds one row per value of the outer axes; inside a row, `groups` of columns that share
    the middle axes. `labels` name the rows, `heads` the groups. `slots` holds, for each slot, the
    positions of its ranks among the cells.
    """

    zoom: Zoom
    width: int
    """Columns of a card; of a cell, 1 or 2."""
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    slots: tuple[tuple[int, ...], ...]
    label_width: int = field(init=False, compare=False)
    _places: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        width = max((len(label) for label in self.labels), default=0)
        object.__setattr__(self, "label_width", width)

    @property
    def cards(self) -> bool:
        return self.zoom == "cards"

    def place(self, index: int) -> tuple[int, int]:
        """Row and column (counted over all groups) of the slot with the cell at `index`."""
        if not self._places:
            for y, groups in enumerate(self.rows):
                for x, slot in enumerate(itertools.chain.from_iterable(groups)):
                    for each in self.slots[slot]:
                        self._places[each] = (y, x)
        if index not in self._places:
            raise ValueError(f"no cell {index}")
        return self._places[index]

    def at(self, y: int, x: int) -> int:
        """Index of the first cell at row `y`, column `x`, both clamped to what exists."""
        groups = self.rows[max(0, min(y, len(self.rows) - 1))]
        flat = [slot for group in groups for slot in group]
        return self.slots[flat[max(0, min(x, len(flat) - 1))]][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a grid is made for. `axes` are (name, size), row-major; `nodes` the node of each rank.

    `arrangement` turns the mesh: 0 is its own order, then each other axis takes the rows, the last
    one is by node. `zoom` None: whatever shows most and fits.
    """

    count: int
    axes: tuple[tuple[str, int], ...]
    nodes: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    """Position among the cells of each place of the mesh, where that is not the order of ranks."""
    arrangement: int = 0
    zoom: Zoom | None = None

    @property
    def flat_axes(self) -> tuple[tuple[str, int], ...]:
        """Those that tell ranks apart; none when they do not make up the world."""
        axes = tuple(axis for axis in self.axes if axis[1] > 1)
        return axes if math.prod(size for _, size in axes) == self.count else ()

    @property
    def arrangements(self) -> tuple[str, ...]:
        """Names of all ways to turn it."""
        names = [name for name, _ in self.flat_axes]
        turned = [_turned(names, at) for at in range(len(names))] if len(names) > 1 else [names]
        words = [
            f"{order[0]} x {' '.join(order[1:])}" if order[1:] else "ranks" for order in turned
        ]
        return (*words, "node x local rank") if len(set(self.nodes)) > 1 else tuple(words)


def _turned(names: Sequence[str], first: int) -> list[str]:
    return [names[first], *names[:first], *names[first + 1 :]]


def make_grid(layout: Layout, width: int, height: int) -> Grid:
    """The grid of `layout` in a space of `width` x `height` characters.

    Up to 64 ranks become cards when all of them fit; up to 2,048 one glyph each; above that, one
    glyph for each node or for the ranks of the innermost axis.
    """
    count, axes = layout.count, layout.flat_axes
    by_node = layout.arrangement % len(layout.arrangements) >= max(1, len(axes))
    zoom = layout.zoom
    if zoom == "cards" or (zoom is None and 0 < count <= MOST_CARDS):
        grid = _cards(count, [size for _, size in axes], width)
        fits = grid.width >= CARD_WIDTH and len(grid.rows) * CARD_HEIGHT <= height
        if fits or (zoom == "cards" and count <= MOST_CARDS):
            return grid
    if zoom is None or zoom == "cards":
        zoom = "wide" if count <= MOST_CELLS else "groups"
    if zoom == "groups":
        return _groups(layout, by_node, width)
    cell = 1 if zoom == "narrow" else 2
    slots = tuple((index,) for index in range(count))
    if by_node:
        return _nodes(layout.nodes, slots, cell, zoom)
    if len(axes) >= 2:
        turned, order = _turn(layout)
        return _mesh_cells(turned, tuple((at,) for at in order), cell, zoom)
    return _plain_cells(count, width, layout.nodes, slots, cell, zoom)


def _turn(layout: Layout) -> tuple[list[tuple[str, int]], list[int]]:
    """The axes in the order of the arrangement, and which cell stands at each place then."""
    axes = layout.flat_axes
    first = layout.arrangement % len(layout.arrangements)
    turned = [axes[first], *axes[:first], *axes[first + 1 :]]
    at = layout.order or range(layout.count)
    if first == 0:
        return turned, list(at)
    strides = {}
    stride = 1
    for name, size in reversed(axes):
        strides[name] = stride
        stride *= size
    places = itertools.product(*(range(size) for _, size in turned))
    steps = [strides[name] for name, _ in turned]
    return turned, [at[sum(map(int.__mul__, place, steps))] for place in places]


def _cards(count: int, sizes: Sequence[int], width: int) -> Grid:
    fit = max(1, width // CARD_WIDTH)
    columns = 1
    for size in reversed(sizes):
        if columns * size > fit:
            break
        columns *= size
    if columns == 1:
        columns = min(fit, count)
    while columns * 2 <= fit and count > columns and count % (columns * 2) == 0:
        columns *= 2
    rows = tuple(
        (tuple(range(start, min(start + columns, count))),) for start in range(0, count, columns)
    )
    return Grid(
        zoom="cards",
        width=min(30, width // columns),
        rows=rows,
        labels=("",) * len(rows),
        heads=(),
        slots=tuple((index,) for index in range(count)),
    )


def _groups(layout: Layout, by_node: bool, width: int) -> Grid:
    """One slot for the ranks of a node or of the innermost axis."""
    axes = layout.flat_axes
    if by_node or len(axes) < 2:
        members: dict[int, list[int]] = {}
        nodes = layout.nodes or tuple(index // 8 for index in range(layout.count))
        for index, node in enumerate(nodes):
            members.setdefault(node, []).append(index)
        slots = tuple(tuple(each) for _, each in sorted(members.items()))
        return _plain_cells(len(slots), width, (), slots, 2, "groups", "node")
    turned, order = _turn(layout)
    inner = turned[-1][1]
    slots = tuple(tuple(order[at : at + inner]) for at in range(0, layout.count, inner))
    if len(turned) == 2:
        return _plain_cells(len(slots), width, (), slots, 2, "groups", turned[0][0])
    return _mesh_cells(turned[:-1], slots, 2, "groups")


def _mesh_cells(axes: Axes, slots: tuple[tuple[int, ...], ...], cell: int, zoom: Zoom) -> Grid:
    name, size = axes[0]
    middle = axes[1:-1] if len(axes) > 2 else []
    inner = axes[-1][1]
    per_row = math.prod(s for _, s in axes[1:])
    heads = tuple(_names(middle)) if middle else ()
    rows = tuple(
        tuple(
            tuple(range(start, start + inner))
            for start in range(row * per_row, (row + 1) * per_row, inner)
        )
        for row in range(size)
    )
    labels = tuple(f"{name}{row}" for row in range(size))
    return Grid(zoom=zoom, width=cell, rows=rows, labels=labels, heads=heads, slots=slots)


def _names(axes: Axes) -> list[str]:
    names = [""]
    for name, size in axes:
        names = [f"{before} {name}{value}".strip() for before in names for value in range(size)]
    return names


def _nodes(nodes: Sequence[int], slots: tuple[tuple[int, ...], ...], cell: int, zoom: Zoom) -> Grid:
    """A row for each node."""
    members: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        members.setdefault(node, []).append(index)
    found: Mapping[int, list[int]] = dict(sorted(members.items()))
    return Grid(
        zoom=zoom,
        width=cell,
        rows=tuple((tuple(each),) for each in found.values()),
        labels=tuple(f"node{node}" for node in found),
        heads=(),
        slots=slots,
    )


def _plain_cells(
    count: int,
    width: int,
    nodes: Sequence[int],
    slots: tuple[tuple[int, ...], ...],
    cell: int,
    zoom: Zoom,
    word: str = "r",
) -> Grid:
    label = len(f"{word}{max(0, count - 1)}")
    each = 8 * cell + 2
    per_row = max(8, (max(each, width - label - 2) // each) * 8)
    groups = [tuple(range(start, min(start + 8, count))) for start in range(0, count, 8)]
    at_once = per_row // 8
    rows = tuple(tuple(groups[at : at + at_once]) for at in range(0, len(groups), at_once))
    labels = tuple(
        f"node{nodes[row[0][0]]}"
        if nodes and len({nodes[i] for group in row for i in group}) == 1 and len(set(nodes)) > 1
        else f"{word}{row[0][0]}"
        for row in rows
    )
    return Grid(zoom=zoom, width=cell, rows=rows, labels=labels, heads=(), slots=slots)
