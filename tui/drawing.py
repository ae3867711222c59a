"""What each area shows: from the view of a moment to lines, once for every refresh."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harness.tui import meshpaint, paint
from harness.tui.actions import keys_text
from harness.tui.grid import Grid, Layout, make_grid
from harness.tui.lines import LinesView
from harness.tui.meshpaint import Mesh
from harness.tui.pages import chaos, collectives, groupedstacks, incidents, metrics
from harness.tui.pages.listing import Listing, Scene
from harness.tui.paint import Line
from harness.tui.shell import SIDE_WIDTH, Shell
from harness.tui.theme import Ink
from harness.tui.view import View

WIDE = 110
LISTINGS: Mapping[str, Callable[[Scene], Listing]] = {
    "collectives": collectives.listing,
    "stacks": groupedstacks.listing,
    "metrics": metrics.listing,
    "incidents": incidents.listing,
    "chaos": chaos.listing,
}


class Drawing(Shell):
    """Shell with something on its areas."""

    def show_view(self, view: View) -> None:
        width, height = self.size
        ascii_only = self.options.ascii_only
        label = "HELD" if self.feed.holding and self.feed.held_ns is not None else self.feed.label
        self.area("header").show_lines([paint.header_line(view, width, label)])
        self.area("banner").show_lines([*paint.banner_lines(view, width, ascii_only)])
        self.area("footer").show_lines([self.footer(width)])
        self.area("status").show_lines([self._status(view, width)])
        wide = width >= WIDE
        # Also for the screens that do not show it: keys move over it from there.
        grid = self._make_grid(view, width - SIDE_WIDTH if wide else width, height - 5)
        if self.page == "mesh":
            self._show_mesh(view, grid, width, height - 5)
        elif self.page == "logs":
            self._show_log(self.area("log_page"), width)
        else:
            self._show_listing(view)

    def scene(self, view: View) -> Scene:
        """What the screens made of rows are made from."""
        width, height = self.size
        rank = view.cells[self.cursor].rank if view.cells else 0
        return Scene(
            model=self.feed.model,
            view=view,
            now_ns=self.clock(),
            width=width - 1,
            height=height - 5,
            where=self.where,
            rank=rank,
            selected=self.chosen.get(self.page),
            zone=self.options.zone,
            ascii_only=self.options.ascii_only,
            kinds=self.kinds,
            deeds=self.may_change and not self.replayed,
            flops_per_token=self.options.flops_per_token,
            peak_tflops=self.options.peak_tflops,
        )

    def _show_listing(self, view: View) -> None:
        with self.feed.lock:
            self.listing = LISTINGS[self.page](self.scene(view))
        lines = self.listing.lines(self.listing.position(self.chosen.get(self.page)))
        self.area("list_page").show_lines(lines)

    def hidden(self, view: View) -> frozenset[int]:
        """Positions of the cells that the filter leaves out."""
        if not self.where.about_ranks:
            return frozenset()
        none: Mapping[str, int] = {}
        places = view.coordinates
        return frozenset(
            at
            for at, cell in enumerate(view.cells)
            if not self.where.cell(cell, places.get(cell.rank, none))
        )

    def _show_mesh(self, view: View, grid: Grid, width: int, height: int) -> None:
        wide = width >= WIDE
        mesh = Mesh(
            view=view,
            grid=grid,
            cursor=self.cursor,
            hidden=self.hidden(view),
            ascii_only=self.options.ascii_only,
        )
        columns, lines = meshpaint.mesh_size(grid)
        self.screen_stack[0].query_one("#body").set_class(wide, "wide")
        left = height if wide else height - min(lines, height)
        side = self.screen_stack[0].query_one("#side")
        side.set_class(left < 3, "hidden")
        area = self.area("mesh")
        area.styles.height = "1fr" if wide or left < 3 else lines
        area.show(lines, columns, lambda y: meshpaint.mesh_line(mesh, y))
        if left >= 3:
            self._show_side(mesh, SIDE_WIDTH if wide else width, left)

    def layout_of(self, view: View) -> Layout:
        """What the grid is made for."""
        return Layout(
            count=len(view.cells),
            axes=view.axes,
            nodes=tuple(cell.node_rank for cell in view.cells),
            order=view.order(),
            arrangement=self.arrangement,
            zoom=self.zoom,
        )

    def _make_grid(self, view: View, width: int, height: int) -> Grid:
        """The grid, made anew only when the ranks, the room or what was chosen change."""
        head = view.header
        key: tuple[object, ...] = (
            *(head.attempt, len(view.cells), view.axes, len(view.coordinates)),
            *(width, height, self.zoom, self.arrangement),
        )
        if self.grid is None or key != self._grid_key:
            self.grid = make_grid(self.layout_of(view), width, height)
            self._grid_key = key
        return self.grid

    def _show_side(self, mesh: Mesh, width: int, height: int) -> None:
        """Incidents and log beside or below the mesh; without cards, first the troubled ranks."""
        view, ascii_only = mesh.view, self.options.ascii_only
        with_log = self.logs is not None and height >= 6 and not self.replayed
        most = height - 1 if not with_log else max(2, height // 2 - 1)
        if not mesh.grid.cards and view.cells:
            rows, troubled = meshpaint.bad_lines(mesh, width, most)
            title = "troubled ranks" if troubled else "ranks"
        else:
            found = incidents.incident_lines(view.incidents, width, self.options.zone, ascii_only)
            rows, title = found[:most], f"incidents ({len(view.incidents)})"
        rows = rows[:most]
        if view.banner.tone != "ok" and len(rows) + 3 <= most:
            scene = replace(self.scene(view), width=width)
            with self.feed.lock:
                held = collectives.held_lines(scene, most - len(rows) - 2)
            if held:
                rows += [(), paint.rule("others wait for", width, ascii_only), *held]
        self.area("incidents_title").show_lines([paint.rule(title, width, ascii_only)])
        area = self.area("incidents")
        area.styles.height = len(rows)
        area.show_lines(rows)
        self.area("log_title").set_class(not with_log, "hidden")
        self.area("log").set_class(not with_log, "hidden")
        if with_log:
            self.area("log_title").show_lines([paint.rule("log", width, ascii_only)])
            self._show_log(self.area("log"), width)

    def _show_log(self, area: LinesView, width: int) -> None:
        if self.logs is None:
            area.show_lines([((" the logs lie on the machine of the run", "dim"),)])
            return
        lines = self.logs.lines()
        if not lines:
            area.show_lines([((" no output so far", "dim"),)])
            return
        if self.where.terms:
            with self.feed.lock:
                chosen = self.scene(self.shown_view).chosen()
            lines = [
                line
                for line in lines
                if self.where.line(line.text)
                and (chosen is None or not chosen.isdisjoint(line.ranks))
            ]
            if not lines:
                area.show_lines([((" no line is chosen by the filter", "dim"),)])
                return
        ascii_only = self.options.ascii_only
        area.show(len(lines), width, lambda y: paint.log_line(lines[y], width, ascii_only))

    def _status(self, view: View, width: int) -> Line:
        ascii_only = self.options.ascii_only
        if self.message:
            return ((" " + paint.fit(self.message, width - 2, ascii_only), "key"),)
        if self.feed.trouble and self.feed.trouble != self.read_trouble:
            return ((" " + paint.fit(self.feed.trouble, width - 2, ascii_only), "warn"),)
        if self.where.terms:
            left = len(view.cells) - len(self.hidden(view))
            text = f"filter {self.where.text}: {left} of {len(view.cells)} ranks; Esc ends it"
            return ((" " + paint.fit(text, width - 2, ascii_only), "warn"),)
        with self.feed.lock:
            losses = self.feed.model.history.losses()
        return paint.status_line(view, self.cursor, losses, width, ascii_only)

    def footer(self, width: int) -> Line:
        """As many hints as there is room for, help first."""
        names = ["help", "detach", *_HINTS.get(self.page, _HINTS["rows"])]
        line: list[tuple[str, Ink]] = []
        for name in names:
            key = keys_text(self.options.keys[name]).split(" ")[0]
            word = _HINT_WORDS[name]
            width -= len(key) + len(word) + 3
            if key and width >= 0:
                line += [(f" {key}", "key"), (f" {word} ", "dim")]
        return tuple(line)


_HINTS: Mapping[str, Sequence[str]] = {
    "mesh": ("next-bad", "detail", "filter", "stacks", "logs", "incidents", "palette"),
    "logs": ("mesh", "filter", "follow", "down", "palette"),
    "metrics": ("mesh", "down", "palette"),
    "rows": ("mesh", "detail", "down", "filter", "palette"),
    "chaos": ("mesh", "detail", "down", "palette"),
    "stacks": ("mesh", "take-stacks", "detail", "filter", "palette"),
}
_HINT_WORDS: Mapping[str, str] = {
    "help": "help",
    "detach": "detach",
    "next-bad": "next bad",
    "detail": "detail",
    "filter": "filter",
    "stacks": "stacks",
    "logs": "logs",
    "incidents": "incidents",
    "palette": "more",
    "mesh": "mesh",
    "follow": "follow",
    "down": "down",
    "take-stacks": "take now",
}
