"""The terminal app: what each key does beyond moving. The keys stand in `harness.tui.actions`."""

import asyncio
import re
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from harness.errors import UsageError
from harness.faults import Fault, when, whom
from harness.orders import Command, Inject, Preempt, RestartRun, SaveNow, ShowStacks, StopRun
from harness.state import RunState
from harness.tui.actions import ACTIONS, BY_NAME, keys_text, offered
from harness.tui.dialogs import Confirm, TextScreen, help_lines
from harness.tui.feed import ENDED
from harness.tui.grid import ZOOMS
from harness.tui.moving import Moving
from harness.tui.pages.chaos import about
from harness.tui.paint import Line
from harness.tui.prompt import Choice, Prompt
from harness.tui.replay import ReplayFeed
from harness.tui.shell import RATES, Do, Options
from harness.tui.where import parse

__all__ = ["Do", "HarnessApp", "Options"]

_NO_KEY = "unbound"
"""No terminal sends it; a keymap without any key would leave the default one."""
_MOST_RANKS_WITHOUT_NAME = 64
"""Stopping a larger run asks for its name."""


def _accept(state: RunState, command: Command) -> tuple[bool, str]:
    """Whether the controller would take it, and what it would say."""
    from harness.recovery import accept  # with all of diagnosis: two megabytes that few need

    return accept(state, command)


class HarnessApp(Moving):
    """All screens over one feed, see Shell for what it is given."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(action.keys, action.call, action.words, id=action.name, show=False)
        for action in ACTIONS
    ]

    def on_mount(self) -> None:  # Textual calls that of Shell too
        changed = {n: keys for n, keys in self.options.keys.items() if keys != BY_NAME[n].keys}
        self.set_keymap({name: keys or _NO_KEY for name, keys in changed.items()})

    @property
    def _replay(self) -> ReplayFeed | None:
        if isinstance(self.feed, ReplayFeed):
            return self.feed
        self.say("this is not a replay; harness tui RUN --replay plays a run once more")
        return None

    # --- looking -------------------------------------------------------------------------------

    def action_detach(self) -> None:
        self.exit(return_code=0)

    def action_help(self) -> None:
        self.push_screen(TextScreen(lambda: ((" help", "title"),), self._help_content))

    def _help_content(self) -> list[Line]:
        return help_lines(
            self.options.keys,
            deeds=self.may_change,
            replay=self.replayed,
            ascii_only=self.options.ascii_only,
        )

    def action_filter(self) -> None:
        def hints(_: str) -> list[Line]:
            axes = [name for name, size in self.shown_view.axes if size > 1]
            example = f"{axes[0]}=0-1" if axes else "rank=0-3"
            text = f" {example} rank=0-7,12 node=1 state=hung,slow step=<200 !{example} word-in-log"
            return [((text, "dim"),)]

        def typed(text: str | None) -> None:
            if text is None:
                return
            try:
                self.set_filter(text)
            except UsageError as error:
                self.say(error.message + (f"; {error.help}" if error.help else ""))

        self.push_screen(Prompt("/", self.where.text, above=hints), typed)

    def set_filter(self, text: str) -> None:
        self.where = parse(text, tuple(name for name, _ in self.shown_view.axes))
        self.message = ""
        hidden = self.hidden(self.shown_view)
        if self.cursor in hidden:
            shown = (at for at in range(len(self.shown_view.cells)) if at not in hidden)
            self.cursor = next(shown, self.cursor)
            self.call_after_refresh(self.keep_cursor_in_sight)
        self.show()

    def action_rank_logs(self) -> None:
        if self.shown_view.cells:
            self.set_filter(f"rank={self.shown_view.cells[self.cursor].rank}")
            self.action_page("logs")

    def action_follow(self) -> None:
        area = self.area("log_page")
        area.follow = not area.follow
        self.say("the log follows its end" if area.follow else "the log stays where it is")

    def action_palette(self) -> None:
        def choices(text: str) -> list[Choice]:
            word = text.strip().lower()
            rank = word.removeprefix("rank").removeprefix("r").strip()
            if rank.isdecimal():
                return [(f"rank {rank}", ((f" go to rank {rank}", "text"),))]
            found = offered(deeds=self.may_change, replay=self.replayed)
            found = [a for a in found if word in a.name or word in a.words.lower()]
            found.sort(key=lambda a: (not a.name.startswith(word), word not in a.name,
                                      a.group == "move"))  # fmt: skip
            return [(action.name, self._choice(action.name)) for action in found]

        def chosen(name: str | None) -> None:
            if name is None:
                return
            if name.startswith("rank "):
                self._go_to(int(name.removeprefix("rank ")))
            else:
                self.call_later(self.run_action, BY_NAME[name].call)

        self.push_screen(Prompt(":", choices=choices), chosen)

    def _choice(self, name: str) -> Line:
        action = BY_NAME[name]
        keys = keys_text(self.options.keys[name])
        line: Line = ((f" {name:<18}", "head"), (f"{keys:<17}", "key"), (action.words, "text"))
        return (*line, (f"   {action.cli_text}", "dim")) if action.cli else line

    def _go_to(self, rank: int) -> None:
        self.moved_ns = self.clock()
        if self.go_to_rank(rank):
            self.action_page("mesh")
        else:
            self.say(f"there is no rank {rank}")

    def action_zoom(self, step: int) -> None:
        now = self.grid.zoom if self.grid is not None else ZOOMS[0]
        self.zoom = ZOOMS[max(0, min(ZOOMS.index(now) + step, len(ZOOMS) - 1))]
        self.show()
        if self.grid is not None and self.grid.zoom == now:
            self.say("no larger cells fit" if step < 0 else "there are no smaller cells")
        self.call_after_refresh(self.keep_cursor_in_sight)

    def action_axes(self) -> None:
        names = self.layout_of(self.shown_view).arrangements
        self.arrangement = (self.arrangement + 1) % len(names)
        if self.grid is not None and self.grid.cards and self.zoom is None:
            self.zoom = "wide"  # cards stand in the order of the ranks
        self.say(f"rows x columns: {names[self.arrangement]}")
        self.call_after_refresh(self.keep_cursor_in_sight)

    def action_hold(self) -> None:
        self.feed.hold(not self.feed.holding)
        self.show()

    def action_rate(self, step: int) -> None:
        if isinstance(self.feed, ReplayFeed):
            self.feed.skip(10.0 * step)
            self.show()
            return
        nearest = min(range(len(RATES)), key=lambda at: abs(RATES[at] - self.rate))
        self.set_rate(RATES[max(0, min(nearest + step, len(RATES) - 1))])
        self.say(f"looks for news {self.rate:g} times a second")

    def action_mute(self) -> None:
        self.muted = not self.muted
        self.say("no bell at incidents" if self.muted else "incidents ring the bell")

    def action_copy(self) -> None:
        if self.page == "mesh" and self.shown_view.cells:
            cell = self.shown_view.cells[self.cursor]
            text = f"rank {cell.rank} {self.shown_view.place(cell)} {cell.state} step {cell.step}"
        elif self.listing.rows:
            row = self.listing.rows[self.row]
            text = "\n".join("".join(part for part, _ in line).strip() for line in row.lines)
        else:
            text = "\n".join(self.shown_view.banner.lines)
        self.copy_to_clipboard(text)
        self.say("copied, where the terminal allows it (OSC 52)")

    def action_write(self) -> None:
        if not self.options.files:
            self.say("no files are written from a browser")
            return
        run = re.sub(r"[^A-Za-z0-9-]", "_", self.shown_view.header.run) or "run"
        path = Path(f"{run}-{self.page}.svg")
        try:
            path.write_text(self.export_screenshot(), encoding="utf-8")
        except OSError as error:
            self.say(f"{path}: {error.strerror}")
            return
        self.say(f"written: {path}")

    # --- replay --------------------------------------------------------------------------------

    def action_frame(self, step: int) -> None:
        feed = self._replay
        if feed is not None:
            feed.frame(step)
            self.show()

    def action_speed(self, step: int) -> None:
        feed = self._replay
        if feed is not None:
            feed.faster(step)
            self.show()

    def action_incident(self, step: int) -> None:
        feed = self._replay
        if feed is not None and not feed.incident(step):
            sought = (
                "" if feed.tape.searched or step < 0 else " so far; the journal is being searched"
            )
            self.say(f"there is no {'later' if step > 0 else 'earlier'} incident{sought}")
        self.show()

    def action_time(self) -> None:
        feed = self._replay
        if feed is None:
            return

        def typed(text: str | None) -> None:
            at_ns = feed.time_of(text or "")
            if at_ns is not None:
                feed.seek(at_ns)
                self.show()
            elif text:
                self.say(f"{text}: not a time such as 00:12:30, 750, +10 or -10")

        self.push_screen(Prompt("time"), typed)

    # --- asking the run ------------------------------------------------------------------------

    def action_take_stacks(self) -> None:
        if self.do is None or self.feed.over or self.replayed:
            self.say("stacks can only be taken of a run that goes on")
            return
        if self.page != "stacks":
            self.action_page("stacks")
        self.say("the stacks are being taken")
        request = f"tui-{self.clock()}"
        self.run_worker(self._carry_out(ShowStacks(request=request), quiet=True), exclusive=True)

    def action_stop_run(self) -> None:
        if not self._may_act():
            return
        header = self.shown_view.header
        kept = header.checkpoint_step
        lost = header.step - kept if kept is not None else header.step
        self._ask(
            Confirm(
                deed=f"Stop run {header.run}?",
                effect=f"All {header.world_size} ranks are told to end; the run is over then.",
                cost=f"Lost: {lost} steps since the newest checkpoint.",
                command=self._command("stop"),
                typed=header.run if header.world_size > _MOST_RANKS_WITHOUT_NAME else "",
            ),
            StopRun(why="asked for in the terminal view", signal=0),
        )

    def action_checkpoint(self) -> None:
        if not self._may_act():
            return
        request = SaveNow(request=f"tui-{self.clock()}")
        with self.feed.state() as state:
            accepted, answer = _accept(state, request)
            mark = state.newest_restore_point
        if not accepted:
            self.say(f"it would be refused: {answer}")
            return
        took = "" if mark is None else f"; {mark.seconds:.2g} s at step {mark.step}"
        header = self.shown_view.header
        self._ask(
            Confirm(
                deed=f"Save a checkpoint of run {header.run} now?",
                effect=f"All {header.world_size} ranks save at one step and go on.",
                cost=f"Training stands still for it{took}.",
                command=self._command("checkpoint"),
            ),
            request,
        )

    def action_preempt(self) -> None:
        if not self._may_act():
            return
        header = self.shown_view.header
        self._ask(
            Confirm(
                deed=f"Save, then stop run {header.run}?",
                effect=f"All {header.world_size} ranks save at one step and end; the run is over.",
                cost="A script that never asks harness.should_stop ends without a checkpoint.",
                command=self._command("preempt"),
                typed=header.run if header.world_size > _MOST_RANKS_WITHOUT_NAME else "",
            ),
            Preempt(why="asked for in the terminal view"),
        )

    def action_restart(self) -> None:
        if not self._may_act():
            return
        request = RestartRun(why="asked for in the terminal view")
        with self.feed.state() as state:
            accepted, answer = _accept(state, request)
        if not accepted:
            self.say(f"it would be refused: {answer}")
            return
        header = self.shown_view.header
        self._ask(
            Confirm(
                deed=f"Restart run {header.run}?",
                effect=f"All {header.world_size} ranks are stopped and started again.",
                cost=answer[:1].upper() + answer[1:] + ".",
                command=self._command("restart"),
            ),
            request,
        )

    def _command(self, name: str) -> str:
        return f"{BY_NAME[name].cli} {self.options.run_argument}".strip()

    def action_inject(self) -> None:
        if self._may_inject():
            self._ask_for_fault("kill")

    def action_detail(self) -> None:
        if self.page != "chaos":
            super().action_detail()
        elif self.listing.rows and self._may_inject():
            row = self.listing.rows[self.row]
            self._ask_for_fault(str(row.key))

    def _may_inject(self) -> bool:
        if not self._may_act() or not self.shown_view.cells:
            return False
        with self.feed.state() as state:
            allowed = state.run is not None and state.run.chaos_allowed
        if not allowed:
            self.say("the run was started without --chaos-allowed, so it takes no fault")
        return allowed

    def _ask_for_fault(self, kind: str, line: str = "", trouble: str = "") -> None:
        """Have the line of `harness inject` written, its beginning filled in."""
        if not self.kinds:
            self.kinds = self.options.kinds()
        kinds = {each.name: each for each in self.kinds}
        cell = self.shown_view.cells[self.cursor]
        on_node = kind in kinds and kinds[kind].on_node
        target = f"--node {cell.node_rank}" if on_node else f"--rank {cell.rank}"

        def above(text: str) -> list[Line]:
            known = kinds.get(text.split(" ", maxsplit=1)[0])
            lines: list[Line] = [((f" {trouble}", "alarm"),)] if trouble else []
            width = self.size.width - 1
            return lines + (about(known, width, self.options.ascii_only) if known else [])

        def typed(text: str | None) -> None:
            if text is not None and text.strip():
                self.run_worker(self._read_fault(text.strip()), exclusive=True)

        self.push_screen(Prompt("harness inject", line or f"{kind} {target} ", above=above), typed)

    async def _read_fault(self, line: str) -> None:
        try:
            fault = await asyncio.to_thread(self.options.read_fault, line)
        except UsageError as error:
            words = error.message + (f"; {error.help}" if error.help else "")
            self._ask_for_fault(line.split(" ", maxsplit=1)[0], line, words)
            return
        self._ask_to_inject(fault, line)

    def _ask_to_inject(self, fault: Fault, line: str) -> None:
        kind = next((each for each in self.kinds if each.name == fault.kind), None)
        header = self.shown_view.header
        kept = header.checkpoint_step
        since = f"step {kept}" if kept is not None else "the beginning"
        command = f"harness inject {line} {self.options.run_argument}".strip()
        self._ask(
            Confirm(
                deed=f"Inject {fault.kind} into {whom(fault)}, {when(fault)}?",
                effect=kind.summary if kind is not None else "",
                cost=f"May cost the steps since {since}; the run judges it and restarts.",
                command=" ".join(command.split()),
            ),
            Inject(fault=fault),
        )

    def _may_act(self) -> bool:
        if self.replayed:
            self.say("this is a replay: what happened cannot be changed")
        elif not self.may_change:
            self.say("this view is read-only")
        elif self.feed.over:
            self.say("the run has ended" if self.feed.label == ENDED else "the run is gone")
        else:
            return True
        return False

    def _ask(self, question: Confirm, command: Command) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._carry_out(command), exclusive=True)

        self.push_screen(question, answered)

    async def _carry_out(self, command: Command, *, quiet: bool = False) -> None:
        assert self.do is not None
        accepted, why = await asyncio.to_thread(self.do, command)
        word = "accepted" if accepted else "refused"
        self.say("" if quiet and accepted else f"{word}: {why}" if why else word)
