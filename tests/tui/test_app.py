"""The app as a user meets it: real Textual, driven with Pilot, at fixed sizes and a fixed time."""

import asyncio
import itertools
import re

import pytest

from harness.orders import StopRun
from harness.topology import Mesh

LOGS = {
    rank: [f"step={step} loss={5.5 / (1 + step / 100):.3f}" for step in range(205, 213)]
    + (["[rank5]: ValueError: boom [not markup]"] if rank == 5 else [])
    for rank in range(8)
}


@pytest.fixture
def crashed(scenes, tmp_path):
    """The crashed scene and its run directory, with logs."""
    scene = scenes.crashed()
    folder = scene.write(tmp_path)
    scenes.write_logs(folder, 0, LOGS)
    return scene, folder


@pytest.mark.parametrize("size", [(80, 24), (60, 18), (150, 44)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_crash_is_named_without_a_key_press(crashed, tui, size):
    scene, folder = crashed
    lines = tui.drive(tui.app_of(scene, run_dir=folder), size)
    assert "EXCEPTION" in lines[1]
    assert "rank 5 (dp1 pp0 tp1): ValueError: boom [not" in lines[1]
    assert "at train.py:88 in forward" in lines[2]
    tui.golden(f"crashed-{size[0]}x{size[1]}", lines)


@pytest.mark.parametrize("name", ["gathering", "running", "restarted", "finished", "failed"])
def test_scene_looks_as_before(scenes, tui, name):
    lines = tui.drive(tui.app_of(scenes.SCENES[name]()), (80, 24))
    tui.golden(f"{name}-80x24", lines)


def test_ascii_draws_with_ascii_only(crashed, tui):
    scene, folder = crashed
    lines = tui.drive(tui.app_of(scene, run_dir=folder, ascii_only=True), (80, 24))
    assert all(line.isascii() for line in lines)
    tui.golden("crashed-ascii-80x24", lines)


def test_no_color_draws_every_screen(crashed, tui, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    scene, folder = crashed
    app = tui.app_of(scene, run_dir=folder)
    pages = ("2", "3", "4", "5", "6", "7", "colon", "escape", "slash", "escape", "1")
    strips = []
    look = lambda: strips.extend(app.area("mesh").render_lines(app.area("mesh").size.region))  # noqa: E731
    lines = tui.drive(
        app, (150, 44), "enter", "escape", "question_mark", "escape", *pages, then=look
    )
    for color in (segment.style.color for strip in strips for segment in strip):
        assert color.triplet.red == color.triplet.green == color.triplet.blue, "grey, all of it"
    assert any(" X  dead" in line for line in lines)
    assert app.return_code in (0, None)


def test_large_mesh_shows_its_one_culprit_in_sight(scenes, tui):
    scene = scenes.large(Mesh(names=("dp", "pp", "tp"), sizes=(32, 4, 8)), hung=517)
    lines = tui.drive(tui.app_of(scene), (80, 24))
    assert "rank 517 (dp16 pp0 tp5, node 64 host-64) exited with code 17" in lines[1]
    row = next(line for line in lines[3:22] if line.lstrip().startswith("dp16"))
    assert "X<" in row


@pytest.mark.parametrize("width", [60, 80])
def test_hints_are_whole_and_help_comes_first(scenes, tui, width):
    app = tui.app_of(scenes.running())
    line = "".join(text for text, _ in app.footer(width))
    assert line.startswith(" ? help  q detach")
    assert len(line) <= width


def test_keys_move_the_cursor_over_the_mesh(scenes, tui):
    app = tui.app_of(scenes.running())
    seen = []
    keys = ("l", "j", "G", "right", "down", "k", "h")
    tui.drive(app, (80, 24), "l", "j", then=lambda: seen.append(app.cursor))
    app = tui.app_of(scenes.running())
    tui.drive(app, (80, 24), *keys, then=lambda: seen.append(app.cursor))
    assert seen == [5, 2]


def test_next_bad_finds_the_culprit_from_anywhere(crashed, tui):
    scene, folder = crashed
    app = tui.app_of(scene, run_dir=folder)
    seen = []
    tui.drive(app, (80, 24), "g", "n", then=lambda: seen.append(app.cursor))
    assert seen == [5]


def test_user_at_work_is_not_moved(scenes, tui):
    scene = scenes.running()
    app = tui.app_of(scene)
    seen = []

    def crash() -> None:
        for record in scenes.crashed().records[len(scene.records) :]:
            app.feed.take(record)
        app.show()
        seen.append((app.shown_view.culprit, app.cursor))

    tui.drive(app, (80, 24), "l", then=crash)
    assert seen == [(5, 1)]


def test_detail_tells_exception_stack_and_output(crashed, tui):
    scene, folder = crashed
    lines = tui.drive(tui.app_of(scene, run_dir=folder), (100, 50), "enter")
    text = "\n".join(lines)
    for part in (
        "rank 5 (dp1 pp0 tp1)",
        "pid 5005",
        "ValueError: boom [not markup]",
        "at train.py:88 in forward",
        "all_reduce  tp.py:41",
        "all_reduce #101 on mesh_tp",
        "[rank5]: ValueError: boom [not markup]",
    ):
        assert part in text


def test_pages_show_logs_and_incidents(crashed, tui):
    scene, folder = crashed
    logs = "\n".join(tui.drive(tui.app_of(scene, run_dir=folder), (80, 24), "4"))
    assert "[r0-7] step=212" in logs
    assert "[r5] [rank5]: ValueError: boom [not markup]" in logs
    incidents = "\n".join(tui.drive(tui.app_of(scene, run_dir=folder), (80, 24), "6"))
    for part in ("rank 5 raised before any other rank (proven)", "ranks 0-4,6-7", "from step 200"):
        assert part in incidents


def test_a_tick_while_a_screen_is_being_put_up_breaks_nothing(scenes, tui):
    app = tui.app_of(scenes.running())

    def put_up() -> None:
        app.action_help()
        app.show()

    tui.drive(app, (80, 24), then=put_up)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_leaving_is_exit_code_0(scenes, tui, key):
    app = tui.app_of(scenes.running())
    tui.drive(app, (80, 24), key)
    assert app.return_code == 0


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@pytest.mark.parametrize("over", ["enter", "question_mark"])
def test_screens_over_the_main_one_can_be_left(scenes, tui, over, key):
    app = tui.app_of(scenes.running())
    seen = []
    tui.drive(app, (80, 24), over, key, then=lambda: seen.append(len(app.screen_stack)))
    assert seen == [1] or app.return_code == 0


def test_broken_data_ends_the_app_with_its_error(scenes, tui):
    app = tui.app_of(scenes.running())
    with app.feed.state() as state:
        state.attempts[0].ranks[0].step = None
    tui.drive(app, (80, 24), broken=True)
    assert app.return_code == 70
    assert isinstance(app.bug, TypeError)


def test_enter_never_does_a_deed(scenes, tui):
    done = []
    for key in ("S", "X"):
        app = tui.app_of(scenes.running(), do=lambda c: (bool(done.append(c)), ""))
        tui.drive(app, (80, 24), key, "enter")
    assert done == []


def test_deeds_are_done_after_y(scenes, tui):
    done = []

    def do(command):
        done.append(command)
        return True, "stopping"

    app = tui.app_of(scenes.running(), do=do, run_argument="swift-otter-12")
    question = tui.drive(app, (80, 24), "S")
    assert any("harness stop swift-otter-12" in line for line in question)
    assert any("Lost: 12 steps" in line for line in question)
    app = tui.app_of(scenes.running(), do=do)
    lines = tui.drive(app, (80, 24), "S", "y")
    app = tui.app_of(scenes.running(), do=do)
    assert isinstance(done[0], StopRun)
    assert any("accepted: stopping" in line for line in lines)


def test_a_question_can_be_read_whole_in_a_narrow_terminal(scenes, tui):
    app = tui.app_of(scenes.running(), do=lambda _: (True, ""), run_argument="swift-otter-12")
    text = " ".join(" ".join(tui.drive(app, (60, 18), "P")).split())
    assert "ends without a checkpoint." in text.replace("│", "").replace("  ", " ")
    assert "harness stop --save swift-otter-12" in text


def test_stopping_a_large_run_takes_its_name(scenes, tui):
    done = []
    scene = scenes.large(Mesh(names=("dp", "tp"), sizes=(16, 8)), hung=5)
    app = tui.app_of(scene, do=lambda command: (bool(done.append(command)), ""))
    seen = []

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            for keys in (("S", "enter"), ("S", "y", "enter"), ("S", *scene.run, "enter")):
                for key in keys:
                    await pilot.press({"-": "minus"}.get(key, key))
                await pilot.pause()
                await app.workers.wait_for_complete()
                seen.append(len(done))

    asyncio.run(run())
    assert seen == [0, 0, 1]


def test_a_screen_is_written_under_a_harmless_name(scenes, tui, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = tui.app_of(scenes.Scene(run="../../etc/x"))
    app.feed.model.state.run = scenes.running().records[0].event
    object.__setattr__(app.feed.model.state.run, "run", "../../etc/x")
    tui.drive(app, (80, 24), "w")
    assert [path.name for path in tmp_path.iterdir()] == ["______etc_x-mesh.svg"]


def test_readonly_refuses_deeds(scenes, tui):
    lines = tui.drive(tui.app_of(scenes.running()), (80, 24), "S")
    assert any("read-only" in line for line in lines)


@pytest.mark.parametrize("size", [(20, 6), (3, 2)])
def test_tiny_terminal_breaks_nothing(crashed, tui, size):
    scene, folder = crashed
    app = tui.app_of(scene, run_dir=folder)
    tui.drive(app, size, "enter", "escape", "4", "6", "1", "j", "n")
    assert app.bug is None


def test_damaged_journal_is_named_until_a_key_is_pressed(scenes, tui):
    app = tui.app_of(scenes.running())
    app.feed.say("LIVE", "journal.jsonl:7: not a record; left out")
    assert "journal.jsonl:7" in tui.drive(app, (80, 24))[22]
    app = tui.app_of(scenes.running())
    app.feed.say("LIVE", "journal.jsonl:7: not a record; left out")
    assert "rank 1/8" in tui.drive(app, (80, 24), "l")[22]


def test_nothing_is_redrawn_when_nothing_changes(scenes, tui):
    app = tui.app_of(scenes.finished())
    drawn = []

    def look() -> None:
        app.tick()
        app._draw = lambda: drawn.append(1)
        app.tick()

    tui.drive(app, (80, 24), then=look)
    assert drawn == []


def test_only_lines_that_differ_are_painted_again(scenes, tui):
    app = tui.app_of(scenes.large(Mesh(names=("dp", "pp", "tp"), sizes=(16, 2, 4)), hung=77))
    painted = []

    async def run() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("g")
            for key in ("space", "space", "l", "j"):
                await pilot.press(key)
                await pilot.pause()
                area = app.area("mesh")
                painted.append(area.render_lines(area.size.region))

    asyncio.run(run())
    changed = [
        sum(one is not other for one, other in zip(before, after, strict=True))
        for before, after in itertools.pairwise(painted)
    ]
    assert changed == [0, 1, 2], "nothing, the row of the cursor, the rows it left and came to"


def test_live_and_replayed_look_the_same(scenes, tui, tmp_path):
    """The view of a journal being followed is that of the same records fed directly."""
    from harness.tui.feed import journal_feed

    scene = scenes.restarted()
    folder = scene.write(tmp_path)
    feed = journal_feed(folder / "journal.jsonl")
    app = tui.app_of(scene)
    direct = tui.drive(app, (80, 24))
    feed.start()
    try:
        while feed.received < len(scene.records):
            feed.stop_asked.wait(0.01)
        app = tui.app_of(scene)
        app.feed = feed
        assert tui.drive(app, (80, 24)) == direct
    finally:
        feed.stop()


def test_log_follows_its_end_until_the_reader_scrolls_away(scenes, tui, tmp_path):
    scene = scenes.running()
    folder = scene.write(tmp_path)
    scenes.write_logs(folder, 0, {0: ["line 0"]})
    app = tui.app_of(scene, run_dir=folder)
    path = folder / "logs" / "attempt0" / "rank00000.log"
    seen = []

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("4")
            for part in range(1, 4):
                with path.open("a") as file:
                    file.writelines(f"line {part}{at:02d}\n" for at in range(20))
                app.logs.poll()
                app.show()
                await pilot.pause()
                seen.append(tui.screen_text(app)[21])
            await pilot.press("k", "k")
            with path.open("a") as file:
                file.write("unseen\n")
            app.logs.poll()
            app.show()
            await pilot.pause()
            seen.append(tui.screen_text(app)[21])
            await pilot.press("G")
            await pilot.pause()
            seen.append(tui.screen_text(app)[21])

    asyncio.run(run())
    words = [re.search(r"line \d+|unseen", line)[0] for line in seen]
    assert words == ["line 119", "line 219", "line 319", "line 317", "unseen"]
