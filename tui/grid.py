"""Where each rank stands on the screen: a mesh as rows and groups of columns. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CARD_WIDTH = 19
CARD_HEIGHT = 4
MOST_CARDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Positions of ranks (indices into the cells, in rank order) for one width.

    `rows` holds one row per value of the outer axes; inside a row, `groups` of columns that
    share the middle axes. `labels` name the rows, `heads` the groups.
    """

    cards: bool
    width: int
    """Columns of a card; of a cell, 2."""
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    labels: tuple[str, ...]
    heads: tuple[str, ...]

    @property
    def label_width(self) -> int:
        return max((len(label) for label in self.labels), default=0)

    def place(self, index: int) -> tuple[int, int]:
        """Row and column (counted over all groups) of the cell at `index`."""
        for y, groups in enumerate(self.rows):
            flat = [i for group in groups for i in group]
            if index in flat:
                return y, flat.index(index)
        raise ValueError(f"no cell {index}")

    def at(self, y: int, x: int) -> int:
        """Index of the cell at row `y`, column `x`, both clamped to what exists."""
        groups = self.rows[max(0, min(y, len(self.rows) - 1))]
        flat = [i for group in groups for i in group]
        return flat[max(0, min(x, len(flat) - 1))]


def make_grid(
    count: int, axes: Sequence[tuple[str, int]], width: int, height: int, nodes: Sequence[int] = ()
) -> Grid:
    """The grid for `count` ranks in a space of `width` x `height` characters.

    Up to 64 ranks become cards when all of them fit; otherwise each rank is one glyph. `axes` are
    (name, size), row-major; `nodes` names the node of each rank and gives rows when there is no
    mesh.
    """
    axes = [axis for axis in axes if axis[1] > 1]
    if math.prod(size for _, size in axes) != count:
        axes = []
    if 0 < count <= MOST_CARDS:
        grid = _cards(count, [size for _, size in axes], width)
        if grid.width >= CARD_WIDTH and len(grid.rows) * CARD_HEIGHT <= height:
            return grid
    if len(axes) >= 2:
        return _mesh_cells(axes)
    return _plain_cells(count, width, nodes)


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
        cards=True,
        width=min(30, width // columns),
        rows=rows,
        labels=("",) * len(rows),
        heads=(),
    )


def _mesh_cells(axes: Sequence[tuple[str, int]]) -> Grid:
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
    return Grid(cards=False, width=2, rows=rows, labels=labels, heads=heads)


def _names(axes: Sequence[tuple[str, int]]) -> list[str]:
    names = [""]
    for name, size in axes:
        names = [f"{before} {name}{value}".strip() for before in names for value in range(size)]
    return names


def _plain_cells(count: int, width: int, nodes: Sequence[int]) -> Grid:
    label = len(f"r{max(0, count - 1)}")
    per_row = max(8, (max(16, width - label - 2) // 18) * 8)
    groups = [tuple(range(start, min(start + 8, count))) for start in range(0, count, 8)]
    at_once = per_row // 8
    rows = tuple(tuple(groups[at : at + at_once]) for at in range(0, len(groups), at_once))
    labels = tuple(
        f"node{nodes[row[0][0]]}"
        if nodes and len({nodes[i] for group in row for i in group}) == 1 and len(set(nodes)) > 1
        else f"r{row[0][0]}"
        for row in rows
    )
    return Grid(cards=False, width=2, rows=rows, labels=labels, heads=())
