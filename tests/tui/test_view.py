"""The pure view: what each moment of a run looks like, without a terminal."""

import itertools
import subprocess
import sys

import pytest

from harness.events import OrderGiven, StallLooked
from harness.orders import StopWorkers
from harness.state import fold_all
from harness.topology import Mesh
from harness.tui import paint
from harness.tui.cells import GLYPHS, MEANINGS
from harness.tui.grid import Layout, make_grid
from harness.tui.theme import INK_OF_STATE, STATE_COLOURS
from harness.tui.view import build
from harness.tui.wording import clean, short_path


def view_of(scene):
    return build(fold_all(scene.records), scene.now_ns)


def glyphs(view):
    return "".join(GLYPHS[cell.state] for cell in view.cells)


@pytest.mark.parametrize(
    ("name", "shown", "tone", "word"),
    [
        ("gathering", "", "warn", "STARTING"),
        ("running", "........", "ok", "RUNNING"),
        ("crashed", "wwwwwXww", "bad", "EXCEPTION"),
        ("restarted", "........", "ok", "RUNNING"),
        ("finished", "++++++++", "ok", "SUCCEEDED"),
        ("failed", "sssssXss", "bad", "EXCEPTION"),
    ],
)
def test_scene(scenes, name, shown, tone, word):
    view = view_of(scenes.SCENES[name]())
    assert glyphs(view) == shown
    assert view.banner.tone == tone
    assert view.banner.lines[0].startswith(word)


def test_what_a_restart_waits_for_is_counted_down(scenes):
    scene = scenes.crashed()
    order = StopWorkers(attempt=0, grace=2.0, why="exception")
    scene.add(OrderGiven(node_rank=0, order=order), after=0.1)
    scene.now_ns += 500_000_000
    assert view_of(scene).banner.lines[1].startswith("stopping, killed in 2 s; at train.py:88")
    scene.now_ns += 5_000_000_000
    assert view_of(scene).banner.lines[1].startswith("stopping, killed by now; at train.py:88")
    scene.stop_workers()
    scene.launch(scenes.ONE_NODE, why="restart 1 after exception of rank 5")
    banner = view_of(scene).banner
    assert banner.lines[1].startswith("restarted ")
    assert "8 of 8 ranks up, no step yet; at train.py:88" in banner.lines[1]


def test_the_terminal_is_named_after_the_news(scenes):
    titles = {name: view_of(make()).banner.title("otter") for name, make in scenes.SCENES.items()}
    assert titles["running"] == "RUNNING otter"
    assert titles["crashed"] == "EXCEPTION rank 5 otter"
    assert titles["finished"] == "SUCCEEDED otter"


def test_trouble_is_named_before_the_verdict(scenes):
    scene = scenes.running()
    scene.raise_in(5, step=212)
    view = view_of(scene)
    assert view.culprit == 5
    assert view.banner.lines[0].startswith("TROUBLE  rank 5 (dp1 pp0 tp1) raised ValueError")


def test_cry_of_a_peer_is_not_named_as_the_beginning(scenes):
    """The peers of a killed rank raise before its exit is noticed."""
    scene = scenes.running()
    scene.raise_in(3, step=212, message="Connection closed by peer")
    scene.exit(2, None, signal=9)
    view = view_of(scene)
    assert view.culprit == 2
    assert "rank 2 (dp0 pp1 tp0) was killed by signal 9" in view.banner.lines[0]
    assert view.banner.lines[1].startswith("no verdict yet; 2 ranks failed so far")


def test_several_that_raised_are_all_said(scenes):
    scene = scenes.running()
    for rank in (3, 4):
        scene.raise_in(rank, step=212, message="Connection closed by peer")
    view = view_of(scene)
    assert view.culprit is None
    assert view.banner.lines[0].startswith("TROUBLE  ranks 3-4 failed; rank 3")


def test_victim_that_died_is_not_said_to_wait(scenes):
    scene = scenes.crashed()
    scene.exit(3, 1)
    assert glyphs(view_of(scene)) == "wwwswXww"


def test_axes_of_size_one_are_not_shown(scenes):
    scene = scenes.Scene(mesh=Mesh(names=("pp", "dp", "tp"), sizes=(1, 4, 2)))
    scene.start()
    scene.join()
    scene.launch(scenes.ONE_NODE)
    scene.pulse(3)
    view = view_of(scene)
    assert view.header.mesh == "dp4 tp2"
    assert view.place(view.cells[5]) == "dp2 tp1"


def test_culprit_keeps_its_badge_while_the_others_stop(scenes):
    scene = scenes.crashed()
    scene.stop_workers()
    assert glyphs(view_of(scene)) == "rrrrrXrr"


def test_late_heartbeat_is_stale_and_no_verdict(scenes):
    scene = scenes.running()
    scene.pulse(212, late=(3,))
    view = view_of(scene)
    assert glyphs(view) == "...?...."
    assert view.banner.tone == "warn"
    assert "rank 3" in view.banner.lines[0]
    assert "no verdict" in view.banner.lines[0]


def test_silence_of_everybody_is_said(scenes):
    scene = scenes.running()
    scene.now_ns += 65 * scenes.SECOND
    view = view_of(scene)
    assert glyphs(view) == "????????"
    assert "no sign of life from any rank for 00:01:05" in view.banner.lines[0]


def test_without_a_controller_no_rank_is_called_silent(scenes):
    scene = scenes.running()
    scene.now_ns += 65 * scenes.SECOND
    view = build(fold_all(scene.records), scene.now_ns, led=False)
    assert glyphs(view) == "........"
    assert view.banner.lines[0].startswith("UNLED  no controller for 00:01:05; its launcher")


def test_a_rank_that_is_waited_for_is_said_and_not_blamed(scenes):
    scene = scenes.running()
    why = "rank 0 is waited for, but it prints"
    again_ns = scene.now_ns + 9 * scenes.SECOND
    looked = StallLooked(collection=0, why=why, again_ns=again_ns, ranks=(0,))
    scene.add(looked, after=4.0)
    first, second = view_of(scene).banner.lines
    assert first.startswith("WAITING  for 00:00:")
    assert first.endswith(why)
    assert second == "no verdict yet; looked at 1 time, again in 5 s"
    scene.pulse(213)
    assert "WAITING" not in view_of(scene).banner.lines[0]


def test_rank_far_behind_is_slow(scenes):
    scene = scenes.running()
    scene.pulse({rank: 210 if rank == 6 else 214 for rank in range(8)})
    assert glyphs(view_of(scene)) == "......~."


def test_checkpoint_and_start_are_no_trouble(scenes):
    scene = scenes.running()
    scene.pulse(212, phase="checkpoint")
    view = view_of(scene)
    assert glyphs(view) == "cccccccc"
    assert view.banner.tone == "ok"
    scene = scenes.Scene()
    scene.start()
    scene.join()
    scene.launch(scenes.ONE_NODE)
    scene.pulse(0, phase="init")
    assert glyphs(view_of(scene)) == "iiiiiiii"


def test_node_lost_shows_its_ranks_dead(scenes):
    from harness.events import AgentLost

    scene = scenes.running()
    scene.add(AgentLost(node_rank=0, why="silent for 5 s"))
    view = view_of(scene)
    assert view.banner.tone == "bad"
    assert "silent for 5 s" in " ".join(view.banner.lines)


def test_banner_is_always_two_lines_that_fit(scenes):
    scene = scenes.running()
    scene.raise_in(5, step=212, message="long " * 200 + "\n\x1b[2Jend")
    for width in (40, 60, 80, 150):
        lines = paint.banner_lines(view_of(scene), width)
        assert len(lines) == 2
        for line in lines:
            text = "".join(part for part, _ in line)
            assert len(text) <= width
            assert "\x1b" not in text
            assert "\n" not in text


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_header_fits_and_keeps_name_step_and_feed(scenes, width):
    line = paint.header_line(view_of(scenes.crashed()), width, "LIVE")
    text = "".join(part for part, _ in line)
    assert len(text) <= width + 2
    assert "swift-otter-12" in text
    if width >= 40:
        assert "step 212/400" in text
        assert "LIVE" in text


def test_data_cannot_reach_the_terminal_raw():
    text = "a\x1b[31mred\x1b]0;title\x07\tb\rc\x00\x9bd"
    assert clean(text) == "ared    bc\ufffd\ufffdd"
    assert short_path("/very/long/way/to/trainer/train.py") == "trainer/train.py"
    assert short_path("train.py") == "train.py"


def test_every_state_has_a_glyph_of_its_own():
    assert set(GLYPHS) == set(MEANINGS) == set(INK_OF_STATE)
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    assert all(glyph.isascii() and len(glyph) == 1 for glyph in GLYPHS.values())


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHTS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _lab(colour, matrix):
    def linear(value):
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    rgb = [linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    r, g, b = (
        min(1.0, max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in matrix
    )
    xyz = (
        (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHTS)
def test_state_colours_stay_apart_for_every_sight(sight):
    labs = {name: _lab(colour, SIGHTS[sight]) for name, colour in STATE_COLOURS.items()}
    for one, other in itertools.combinations(labs, 2):
        pairs = zip(labs[one], labs[other], strict=True)
        distance = sum((a - b) ** 2 for a, b in pairs) ** 0.5
        assert distance >= 20, (one, other)


@pytest.mark.parametrize(
    ("count", "axes", "width", "height"),
    [
        (8, (("dp", 2), ("pp", 2), ("tp", 2)), 80, 19),
        (8, (("dp", 2), ("pp", 2), ("tp", 2)), 60, 13),
        (7, (), 80, 19),
        (1, (), 80, 19),
        (64, (("dp", 8), ("tp", 8)), 200, 60),
        (64, (("dp", 8), ("tp", 8)), 80, 19),
        (1000, (), 80, 19),
        (1024, (("dp", 32), ("pp", 4), ("tp", 8)), 100, 40),
        (16384, (("dp", 128), ("cp", 2), ("pp", 8), ("tp", 8)), 200, 50),
        (24, (("dp", 5), ("tp", 5)), 80, 19),
    ],
)
def test_grid_places_every_rank_once(count, axes, width, height):
    grid = make_grid(Layout(count=count, axes=axes), width, height)
    placed = [i for row in grid.rows for group in row for slot in group for i in grid.slots[slot]]
    assert sorted(placed) == list(range(count))
    for index in (0, count // 2, count - 1):
        slot = next(slot for slot in grid.slots if index in slot)
        assert grid.at(*grid.place(index)) == slot[0]
    if grid.cards:
        assert grid.width * max(len(row[0]) for row in grid.rows) <= width


def test_grid_rows_are_the_outer_axis():
    mesh = Mesh(names=("dp", "pp", "tp"), sizes=(2, 2, 2))
    axes = tuple(zip(mesh.names, mesh.sizes, strict=True))
    grid = make_grid(Layout(count=8, axes=axes), 60, 10)
    assert not grid.cards
    assert grid.labels == ("dp0", "dp1")
    assert grid.heads == ("pp0", "pp1")
    assert grid.rows[1] == ((4, 5), (6, 7))


def test_sparkline_spans_low_to_high():
    assert paint.sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert paint.sparkline([3.0, 2.0, 1.0], 8, True).isascii()
    assert paint.sparkline([1.0], 8) == ""
    assert len(paint.sparkline([1.0, 1.0, 1.0], 2)) == 2


def test_view_needs_no_terminal_library():
    code = (
        "import sys, harness.tui.paint, harness.tui.detail; "
        "bad = {'textual', 'grpc', 'torch', 'asyncio'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
