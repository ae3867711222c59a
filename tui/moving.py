"""Moving over the mesh and through the other screens: the cursor, the chosen row, scrolling."""

from textual.geometry import Region

from harness.topology import ranks_text
from harness.tui import paint
from harness.tui.detail import rank_detail
from harness.tui.dialogs import TextScreen
from harness.tui.drawing import LISTINGS, Drawing
from harness.tui.grid import CARD_HEIGHT
from harness.tui.lines import LinesView
from harness.tui.paint import Line

_DETAIL_LOG_LINES = 20


class Moving(Drawing):
    """The keys that change nothing but what is looked at."""

    _detail_log: tuple[str, ...] = ()

    def say(self, message: str) -> None:
        """Tell something in the line above the footer."""
        self.message = message
        self.show()

    def action_page(self, page: str) -> None:
        if page == "mesh" and self.page == "mesh" and self.where.terms:
            self.set_filter("")
            return
        self.page = page
        self.message = ""
        screen = self.screen_stack[0]
        shown = {"mesh": "body", "logs": "log_page"}.get(page, "list_page")
        for area in ("body", "log_page", "list_page"):
            screen.query_one(f"#{area}").set_class(area != shown, "hidden")
        if shown == "list_page":
            self.area("list_page").scroll_to(y=0, animate=False)
        if page == "chaos" and not self.kinds:
            self.kinds = self.options.kinds()
        self.call_after_refresh(self.show)

    def set_filter(self, text: str) -> None:
        """Choose ranks and lines by `text`. Raises UsageError."""
        raise NotImplementedError

    def action_move(self, x: int, y: int) -> None:
        if self.page in LISTINGS and self.listing.rows:
            self._choose(self.row + y)
        elif self.page != "mesh":
            self.page_area.scroll_relative(y=y, animate=False)
        elif self.grid is not None and self.shown_view.cells:
            row, column = self.grid.place(self.cursor)
            self._set_cursor(self.grid.at(row + y, column + x))

    def action_block(self, step: int) -> None:
        """To the same place of the next group of columns."""
        if self.page != "mesh" or self.grid is None or not self.shown_view.cells:
            return
        row, column = self.grid.place(self.cursor)
        inner = len(self.grid.rows[row][0])
        self._set_cursor(self.grid.at(row, column + step * inner))

    def action_end(self, which: int) -> None:
        if self.page in LISTINGS and self.listing.rows:
            self._choose(0 if which < 0 else len(self.listing.rows) - 1)
        elif self.page != "mesh":
            area = self.page_area
            area.scroll_to(y=0 if which < 0 else area.max_scroll_y, animate=False)
        elif self.shown_view.cells:
            self._set_cursor(0 if which < 0 else len(self.shown_view.cells) - 1)

    @property
    def row(self) -> int:
        return self.listing.position(self.chosen.get(self.page))

    def _choose(self, number: int) -> None:
        """Choose a row of the present screen and keep it in sight."""
        rows = self.listing.rows
        number = max(0, min(number, len(rows) - 1))
        self.chosen[self.page] = rows[number].key
        self.message = ""
        self.moved_ns = self.clock()
        self.show()
        top, height = self.listing.place(number)
        if number == 0:
            top, height = 0, top + height  # with the head
        self.page_area.keep_in_sight(Region(0, top, 1, height))

    def action_next_bad(self, step: int) -> None:
        view = self.shown_view
        if not view.cells:
            return
        hidden = self.hidden(view)
        shown = frozenset(c.rank for at, c in enumerate(view.cells) if at not in hidden)
        rank = view.next_troubled(view.cells[self.cursor].rank, step, shown)
        if rank is None:
            self.say("no rank is in trouble")
            return
        self.moved_ns = self.clock()
        self.go_to_rank(rank)
        self._load_detail_log()
        self.show()

    def go_to_rank(self, rank: int) -> bool:
        for index, cell in enumerate(self.shown_view.cells):
            if cell.rank == rank:
                self.cursor = index
                self.call_after_refresh(self.keep_cursor_in_sight)
                return True
        return False

    def _set_cursor(self, index: int) -> None:
        self.moved_ns = self.clock()
        self.message = ""
        self.read_trouble = self.feed.trouble
        self.cursor = index
        self.show()
        self.keep_cursor_in_sight()

    def keep_cursor_in_sight(self) -> None:
        grid = self.grid
        if grid is None or self.page != "mesh" or self.cursor >= len(self.shown_view.cells):
            return
        row, column = grid.place(self.cursor)
        if grid.cards:
            region = Region(column * grid.width, row * CARD_HEIGHT, grid.width, CARD_HEIGHT)
        else:
            before = column // max(1, len(grid.rows[row][0]))
            x = grid.label_width + 2 + column * grid.width + before * 2
            region = Region(x, row + (1 if grid.heads else 0), 2, 1)
        self.area("mesh").keep_in_sight(region)

    def on_lines_view_clicked(self, message: LinesView.Clicked) -> None:
        grid = self.grid
        if message.area.id == "list_page":
            row = self.listing.row_at(message.y)
            if row is not None:
                self._choose(row)
        elif message.area.id == "mesh" and grid is not None and self.shown_view.cells:
            if grid.cards:
                row, column = message.y // CARD_HEIGHT, message.x // grid.width
            else:
                row = message.y - (1 if grid.heads else 0)
                inner = len(grid.rows[0][0]) * grid.width + 2
                block, inside = divmod(message.x - grid.label_width - 2, inner)
                column = block * len(grid.rows[0][0]) + inside // grid.width
            if 0 <= row < len(grid.rows) and column >= 0:
                self._set_cursor(grid.at(row, column))

    # --- one thing, whole ----------------------------------------------------------------------

    def action_detail(self) -> None:
        if self.page in LISTINGS and self.page != "metrics":
            self._open_row()
        elif not self.shown_view.cells:
            self.say("no rank has been started yet")
        elif self.page == "mesh" and self._open_slot():
            return
        else:
            self._load_detail_log()
            self.push_screen(TextScreen(self._detail_title, self._detail_content))

    def _open_slot(self) -> bool:
        """In a mesh of groups, the first Enter tells of the group; whether it did."""
        grid = self.grid
        if grid is None or grid.zoom != "groups":
            return False
        self.push_screen(TextScreen(self._detail_title, self._slot_content))
        return True

    def _slot_content(self) -> list[Line]:
        grid, view = self.grid, self.shown_view
        if grid is None or not view.cells:
            return []
        row, column = grid.place(self.cursor)
        slot = [s for group in grid.rows[row] for s in group][column]
        members = [view.cells[index] for index in grid.slots[slot]]
        lines: list[Line] = [((f" ranks {ranks_text([cell.rank for cell in members])}", "title"),)]
        for cell in members:
            text = f"  {cell.rank:>6}  {view.place(cell)}  node {cell.node_rank}  {cell.state}"
            lines.append(((f"{text}  step {cell.step}  phase {cell.phase}", "text"),))
        lines += [(), ((" z shows single ranks; :RANK and Enter goes to one", "dim"),)]
        return lines

    def _open_row(self) -> None:
        if not self.listing.rows:
            return
        row = self.listing.rows[self.row]
        self.chosen[self.page] = row.key
        if row.rank is not None:
            self.go_to_rank(row.rank)
        page = self.page

        def content() -> list[Line]:
            with self.feed.lock:
                listing = LISTINGS[page](self.scene(self.shown_view))
                found = listing.rows[listing.position(row.key)] if listing.rows else row
                detail = found.detail if found.key == row.key else row.detail
                return detail() if detail is not None else []

        if row.detail is not None:
            self.push_screen(TextScreen(self._detail_title, content))

    def _load_detail_log(self) -> None:
        rank = self.shown_view.cells[self.cursor].rank
        logs = self.logs
        self._detail_log = logs.last_of_rank(rank, _DETAIL_LOG_LINES) if logs else ()

    def _detail_title(self) -> Line:
        return paint.header_line(self.shown_view, self.size.width, self.feed.label)

    def _detail_content(self) -> list[Line]:
        if not self.shown_view.cells:
            return []
        rank = self.shown_view.cells[self.cursor].rank
        with self.feed.state() as state:
            lines = rank_detail(state, self.shown_view, rank, self._detail_log)
        return paint.detail_lines(lines)
