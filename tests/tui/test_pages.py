"""The screens beside the mesh: the same from every source, and what they tell."""

import asyncio
from dataclasses import replace

import pytest

from harness.state import fold_all
from harness.topology import Mesh
from harness.tui.chart import chart
from harness.tui.feed import journal_feed
from harness.tui.grid import Layout, make_grid
from harness.tui.history import MOST_SAMPLES, History, Point
from harness.tui.pages.collectives import groups_of, held_up
from harness.tui.replay import ReplayFeed
from harness.tui.where import parse


@pytest.fixture
def sources(scenes, tui, tmp_path):
    """The same run fed directly, from a journal that is followed, and from one that is replayed."""
    scene = scenes.restarted()
    folder = scene.write(tmp_path)
    scenes.write_logs(folder, 0, {rank: ["step=212"] for rank in range(8)})
    direct = tui.app_of(scene, run_dir=folder)
    followed = tui.app_of(scene, run_dir=folder)
    followed.feed = journal_feed(folder / "journal.jsonl")
    followed.feed.start()
    replayed = tui.app_of(scene, run_dir=folder)
    replayed.feed = ReplayFeed(folder / "journal.jsonl")
    replayed.feed.tape.read(replayed.feed.stop_asked, print)
    replayed.feed.loaded = True
    # There and back again: what is shown does not depend on the way to it.
    first_ns, last_ns = replayed.feed.tape.first_ns, replayed.feed.tape.last_ns
    for at_ns in (last_ns, first_ns, (first_ns + last_ns) // 2, last_ns):
        replayed.feed.seek(at_ns)
    while followed.feed.received < len(scene.records):
        followed.feed.stop_asked.wait(0.01)
    yield direct, followed, replayed
    followed.feed.stop()


def test_live_followed_and_replayed_screens_are_equal(sources, tui):
    direct, followed, replayed = sources
    expected = asyncio.run(tui.screens(direct))
    assert asyncio.run(tui.screens(followed)) == expected
    replayed.feed.label = "LIVE"
    again = asyncio.run(tui.screens(replayed))
    beside = expected[0].index("── log")  # which is not of the moment that is replayed
    assert again[0][:beside] == expected[0][:beside]
    assert again[1:] == expected[1:]
    for name, screen in zip(("collectives", "stacks", "logs", "metrics", "incidents", "chaos"),
                            expected[1:], strict=True):  # fmt: skip
        tui.golden(f"screen-{name}-80x24", screen.splitlines())
    metrics, incidents = expected[4], expected[5]
    for word in ("loss", "tokens per second", "needs --flops-per-token", "ETTR"):
        assert word in metrics
    assert "recovered by restart, 12 steps lost" in incidents
    assert "stacks of 8 ranks" in expected[2] or "no stacks" in expected[2]
    assert "--chaos-allowed" in expected[6]


def test_keys_of_the_replay(scenes, tui, tmp_path):
    scene = scenes.restarted()
    folder = scene.write(tmp_path)
    feed = ReplayFeed(folder / "journal.jsonl")
    feed.tape.read(feed.stop_asked, print)
    feed.loaded = True
    feed.seek(feed.tape.first_ns)
    app = tui.app_of(scene)
    app.feed, app.clock = feed, lambda: feed.now_ns
    seen = []

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            for key in ("i", "[", "i", "full_stop", "S", "at", "0", "enter", "minus", "plus"):
                await pilot.press(key)
                await pilot.pause()
                seen.append((tui.screen_text(app), feed.now_ns))

    asyncio.run(run())
    assert "EXCEPTION" in seen[0][0][1]
    assert "EXCEPTION" not in seen[1][0][1]
    assert seen[2][1] == feed.tape.incidents[0]
    assert "PAUSED x2 00:00:0" in seen[3][0][0]
    assert "what happened cannot be changed" in seen[4][0][22]
    assert seen[7][1] == seen[8][1] == feed.tape.first_ns
    assert seen[9][1] == min(feed.tape.last_ns, feed.tape.first_ns + 10 * scenes.SECOND)
    assert feed.time_of("1:00") == feed.tape.first_ns + 60 * scenes.SECOND
    assert feed.time_of("soon") is None


def test_a_jump_goes_where_the_journal_is_not_read_yet(scenes, tmp_path):
    """It waits there for the reading, says so, and arrives."""
    folder = scenes.restarted().write(tmp_path)
    feed = ReplayFeed(folder / "journal.jsonl")
    feed.tape.find_end()
    feed.tape.search(feed.stop_asked)
    assert feed.incident(1)
    assert feed.label.startswith("READING 0%")
    assert (feed.shown, feed.now_ns) == (0, 0)
    feed.start()
    try:
        while not feed.now_ns or "READING" in feed.label:
            assert not feed.stop_asked.wait(0.01)
    finally:
        feed.stop()
    assert feed.tape.ahead == feed.tape.incidents == feed.tape.incidents_of_all()
    assert feed.now_ns == feed.tape.incidents[0]
    assert feed.model.state.incidents


def test_a_run_that_is_gone_is_not_taken_for_a_silent_one(scenes, tui, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.runs.is_gone", lambda found, state: state.run is not None)
    monkeypatch.setattr("harness.tui.feed._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("harness.tui.feed.GONE_SECONDS", 0.02)
    scene = scenes.running()
    feed = journal_feed(scene.write(tmp_path) / "journal.jsonl")
    feed.start()
    try:
        while not feed.over or feed.received < len(scene.records):
            assert not feed.stop_asked.wait(0.01)
    finally:
        feed.stop()
    app = tui.app_of(scene, do=lambda _: (True, ""))
    app.feed = feed
    lines = tui.drive(app, (80, 24), "R")
    assert lines[0].rstrip().endswith("GONE")
    assert "GONE  no process of it is left; its last sign was" in lines[1]
    assert "the run is gone" in lines[22]


def test_held_screen_stays_and_nothing_is_lost(scenes, tui, tmp_path):
    scene = scenes.restarted()
    folder = scene.write(tmp_path)
    feed = journal_feed(folder / "journal.jsonl")
    feed.hold(True)
    feed.start()
    try:
        assert feed.received == 0
        app = tui.app_of(scene)
        app.feed = feed
        assert "HELD" in tui.drive(app, (80, 24))[0]
        feed.hold(False)
        while feed.received < len(scene.records):
            feed.stop_asked.wait(0.01)
    finally:
        feed.stop()


def test_filter_blanks_the_others_on_all_screens(scenes, tui):
    scene = scenes.large(Mesh(names=("dp", "pp", "tp"), sizes=(16, 2, 4)), hung=77)
    app = tui.app_of(scene)
    app.where = parse("dp=9 !pp=0", ("dp", "pp", "tp"))
    lines = tui.drive(app, (80, 24))
    assert any("4 of 128 ranks" in line for line in lines)
    rows = [line for line in lines if line.lstrip().startswith("dp")]
    assert sum("·" in row or "X" in row for row in rows) == 1
    app = tui.app_of(scene)
    lines = tui.drive(app, (80, 24), "slash", *"dq", "equals_sign", "1", "enter")
    assert any("no such axis or name; did you mean dp?" in line for line in lines)


def test_thousands_of_ranks_are_groups_of_which_the_worst_is_shown(scenes, tui):
    mesh = Mesh(names=("dp", "pp", "tp"), sizes=(33, 8, 8))
    scene = scenes.large(mesh, hung=517)
    app = tui.app_of(scene)
    seen = []

    async def run() -> None:
        async with app.run_test(size=(100, 40)) as pilot:
            await pilot.pause()
            for key in ("", "enter", "escape", "v", "v", "v", "z"):
                if key:
                    await pilot.press(key)
                    await pilot.pause()
                seen.append("\n".join(tui.screen_text(app)))

    asyncio.run(run())
    row = next(line for line in seen[0].splitlines() if line.lstrip().startswith("dp8 "))
    assert "X<" in row
    assert "ranks 512-519" in seen[1]
    assert "rank 517" in seen[0]
    assert "rows x columns: pp x dp tp" in seen[3]
    assert "rows x columns: node x local rank" in seen[5]
    assert app.grid.zoom == "narrow"
    assert app.bug is None


@pytest.mark.parametrize("arrangement", range(4))
@pytest.mark.parametrize("zoom", ["wide", "narrow", "groups"])
def test_every_arrangement_holds_every_rank_once(arrangement, zoom):
    axes = (("dp", 4), ("pp", 2), ("tp", 8))
    layout = Layout(
        count=64, axes=axes, nodes=tuple(rank // 8 for rank in range(64)),
        arrangement=arrangement, zoom=zoom,
    )  # fmt: skip
    grid = make_grid(layout, 80, 24)
    placed = [i for row in grid.rows for group in row for slot in group for i in grid.slots[slot]]
    assert sorted(placed) == list(range(64))
    if arrangement == 2 and zoom == "wide":
        assert grid.labels[3] == "tp3"
        assert [grid.slots[slot][0] for slot in grid.rows[3][0]] == [3, 11]
    assert len(layout.arrangements) == 4


def test_who_holds_a_group_up_is_said_by_evidence_only(scenes):
    scene = scenes.running()
    state = fold_all(scene.records)
    now_ns = scene.now_ns + 5 * scenes.SECOND
    assert groups_of(state.attempt) == []
    scene.evidence(0, ranks=[rank for rank in range(8) if rank != 5])
    state = fold_all(scene.records)
    (row,) = groups_of(state.attempt)
    assert (row.role, row.op, row.high) == ("mesh_tp", "all_reduce", 101)
    assert held_up(row, state, now_ns) is None  # all that are known to be in it wait alike


def test_chart_is_as_large_as_asked_for():
    values = [Point(at * 1_000_000_000, float(at)) for at in range(100)]
    lines = chart(values, 20, 4)
    assert [len(line) for line in lines] == [20] * 4
    assert lines[0].lstrip() == "▁▃▅▆█"
    assert all(line.isascii() for line in chart(values, 20, 4, ascii_only=True))
    assert chart([], 20, 4) == []


def test_a_long_run_keeps_few_samples(scenes):
    scene = scenes.running()
    history = History()
    state = fold_all(scene.records)
    for step in range(2000):
        scene.pulse(212 + step)
        history.take(scene.records.pop(), state)
    assert 200 < len(history.samples) <= MOST_SAMPLES
    gaps = {b.at_ns - a.at_ns for a, b in zip(history.samples, history.samples[1:], strict=False)}
    assert max(gaps) < 4 * min(gaps)


def test_the_mesh_tells_who_is_waited_for(scenes, tui):
    """Ranks wait in a collective that one of them, looked at since, has not come to."""
    scene = scenes.running()
    scene.now_ns += 4 * scenes.SECOND
    scene.evidence(0, ranks=[4])
    scene.evidence(1, ranks=[5])
    taken = scene.records[-2].event
    behind = tuple(replace(entry, seq_id=99, retired=True) for entry in taken.collectives)
    scene.records[-2] = replace(scene.records[-2], event=replace(taken, collectives=behind))
    state = fold_all(scene.records)
    (row,) = groups_of(state.attempt)
    held = held_up(row, state, scene.now_ns)
    assert held.ranks == (5,)
    assert held.seconds > 4
    lines = tui.drive(tui.app_of(scene), (80, 24), "2")
    assert any("all_reduce" in line and line.rstrip().endswith("r5") for line in lines)
