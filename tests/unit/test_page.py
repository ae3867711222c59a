"""The page: whole, safe, and one file."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from harness import events as e
from harness.page import History, page
from harness.page.history import MOST_POINTS, Curve
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.replay.world import World

SOME = [each for each in SCENARIOS if each.name.startswith(("crash", "exception", "healthy"))]
EVIL = "<script>alert(1)</script>"


def made(world: World) -> str:
    history = History()
    for record in world.records:
        history.take(record)
    return page(world.state, history, version="0.1.0")


def pictures(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]


@pytest.mark.parametrize("scenario", SOME, ids=lambda scenario: scenario.name)
def test_every_scenario_makes_a_whole_page(scenario: Scenario) -> None:
    world = scenario.build()
    text = made(world)
    assert text.count("<section>") == len(world.state.incidents)
    assert len(pictures(text)) >= 1 + len(world.state.incidents)
    assert "Where the time went" in text


def crashed() -> World:
    world = World(nproc=4).start()
    for rank in range(4):
        axes = {"names": ("dp", "tp"), "sizes": (2, 2), "coordinates": divmod(rank, 2)}
        world.say(e.MeshDeclared(rank=rank, **axes), 0)  # type: ignore[arg-type]
    for step in range(1, 8):
        world.step(step)
    world.raises(3, "ValueError", EVIL)
    world.cries(0, 1, 2)
    world.judged()
    return world


def test_it_loads_nothing_and_escapes_what_the_program_said() -> None:
    world = crashed()
    assert world.state.run is not None
    world.state.run = replace(world.state.run, run=EVIL, command=(EVIL,))
    text = made(world)
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*['"]?([^'"\s)>]+)""", text)
    assert links == []
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, nothing is loaded there


def test_the_mesh_shows_who_failed_first() -> None:
    text = made(crashed())
    mesh = next(each for each in pictures(text) if "cell first" in ET.tostring(each).decode())
    titles = [title.text for title in mesh.iter("{http://www.w3.org/2000/svg}title") if title.text]
    assert titles[3] == "rank 3 (dp1 tp1), step 7: failed first"
    assert titles[0].endswith("waited for it or died of it")
    assert len(titles) == 4


def test_a_long_curve_stays_short_and_true() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, 1 / step)
    curve.add(5, 9.9)
    assert MOST_POINTS / 2 <= len(curve.steps) <= MOST_POINTS
    assert all(loss == 1 / step for step, loss in zip(curve.steps, curve.losses, strict=True))
    assert curve.steps == sorted(curve.steps)
    assert curve.steps[-1] > 99_000


def test_in_a_large_world_only_who_failed_first_has_a_lane() -> None:
    world = World(nproc=100).start()
    world.step(1)
    world.raises(77, "ValueError", "x")
    world.judged()
    names = re.findall(r">(rank \d+)</text>", made(world).partition('id="timeline"')[2])
    assert names == ["rank 77"]
