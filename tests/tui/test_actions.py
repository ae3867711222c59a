"""Every action: by key, by palette and on the command line; nothing is destroyed by one key."""

import asyncio
import contextlib
import json
import re
from collections import Counter

import click
import pytest

from harness import runs
from harness.cli.group import call, harness
from harness.cli.tui import _doer, _kinds
from harness.errors import UsageError
from harness.orders import Inject, Preempt, RestartRun, SaveNow, StopRun
from harness.tui.actions import ACTIONS, KEY_WORDS, keys_text
from harness.tui.keymap import keymap

DEEDS = {
    # name: what is pressed after its key or choice; what is typed on the command line
    "stop": (["y"], ["stop"]),
    "checkpoint": (["y"], ["ckpt", "save", "--no-wait"]),
    "preempt": (["y"], ["stop", "--save"]),
    "restart": (["y"], ["restart"]),
    "inject": (["enter", "y"], ["inject", "kill", "--rank", "0"]),
}


def test_names_and_keys_are_used_once():
    assert max(Counter(action.name for action in ACTIONS).values()) == 1
    keys = [key for action in ACTIONS for key in action.keys.split(",")]
    assert max(Counter(keys).values()) == 1
    assert len(set(KEY_WORDS.values())) == len(KEY_WORDS)


def test_every_action_is_a_method_and_stands_in_palette_and_help(scenes, tui):
    app = tui.app_of(scenes.running(), do=lambda _: (True, ""))
    choices = []

    async def run() -> None:
        async with app.run_test(size=(150, 60)) as pilot:
            await pilot.press("colon")
            await pilot.pause()
            choices.extend(name for name, _ in app.screen._choices(""))
            await pilot.press("escape", "question_mark")
            await pilot.pause()

    asyncio.run(run())
    for action in ACTIONS:
        assert hasattr(app, f"action_{action.call.partition('(')[0]}"), action.name
        if action.group != "replay":
            assert action.name in choices
    text = "\n".join("".join(t for t, _ in line) for line in app._help_content())
    for action in ACTIONS:
        if action.group != "replay":
            assert keys_text(action.keys) in text
            assert action.words in text


@pytest.mark.parametrize("action", [a for a in ACTIONS if a.cli], ids=lambda a: a.name)
def test_the_command_line_that_is_shown_is_understood(action):
    words = action.cli.format(rank=3).split()[1:]
    command = harness.get_command(click.Context(harness), words.pop(0))
    if isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(command.name, words)


@pytest.mark.parametrize("name", DEEDS)
def test_key_palette_and_command_line_ask_for_the_same(
    name, scenes, tui, tmp_path, monkeypatch, capsys
):
    """The walk over all that changes a run: what reaches the controller is compared."""
    scene = scenes.running(chaos_allowed=True)
    folder = scene.write(tmp_path)
    (folder / "controller.json").write_text(json.dumps({"address": "127.0.0.1:1", "pid": 1}))
    asked = []

    def do_blocking(address, command, *_):
        asked.append(command)
        return True, ""

    monkeypatch.setattr("harness.wire.observer.do_blocking", do_blocking)
    from harness.cli.inject import read_line

    found = runs.RunFolder(path=folder)
    after, line = DEEDS[name]
    action = next(action for action in ACTIONS if action.name == name)
    app = tui.app_of(
        scene,
        do=_doer(found),
        kinds=_kinds,
        read_fault=lambda text: read_line(text, found),
    )

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            for done, keys in enumerate(([action.keys], ["colon", *action.name, "enter"])):
                for key in (*keys, *after):
                    assert len(asked) == done, "done before the answer"
                    await pilot.press(key)
                    await pilot.pause()
                    await app.workers.wait_for_complete()
                    await pilot.pause()

    asyncio.run(run())
    assert call([*line, str(folder)]) == 0
    assert len(asked) == 3
    shown = [re.sub(r"(why|request)='[^']*'", "", repr(each)) for each in asked]
    assert len(set(shown)) == 1
    assert isinstance(asked[0], StopRun | Preempt | SaveNow | Inject | RestartRun)


def test_every_kind_of_fault_can_be_injected_from_its_row(scenes, tmp_path):
    """The line that stands ready for each kind is one that `harness inject` takes."""
    from harness.chaos import kinds
    from harness.cli.inject import read_line

    its_run = runs.RunFolder(path=scenes.running(chaos_allowed=True).write(tmp_path))
    found = _kinds()
    assert [kind.name for kind in found] == [kind.name for kind in kinds.everything()]
    for kind in found:
        fault = read_line(f"{kind.name} {'--node' if kind.on_node else '--rank'} 0", its_run)
        assert fault.kind == kind.name
    for line in ("kill --rank", "kil --rank 1", "kill", "kill --rank 0 --json", "kill '"):
        with pytest.raises(UsageError):
            read_line(line, its_run)


def test_all_deeds_are_walked():
    assert DEEDS.keys() == {action.name for action in ACTIONS if action.deed}


def test_keymap_of_ones_own(scenes, tui):
    keys = keymap({"next_bad": "b", "mute": "", "stop": ["ctrl+k"]}, "harness.toml")
    assert keys["next-bad"] == "b"
    assert keys["mute"] == ""
    app = tui.app_of(scenes.crashed(), keys=keys)
    seen = []
    look = lambda: seen.append((app.cursor, app.muted))  # noqa: E731
    tui.drive(app, (80, 24), "g", "n", "m", "b", then=look)
    assert seen == [(5, False)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nextbad": "b"}, "no such action"),
        ({"stop": 3}, "a key or a list of keys is wanted"),
        ({"stop": "ctrl+"}, "is no key"),
        ({"stop": "b", "mute": "b"}, "is given to"),
        ({"detach": ""}, "no key is left for detach"),
    ],
)
def test_keymap_that_cannot_be(given, says):
    with pytest.raises(UsageError, match=says):
        keymap(given, "harness.toml")
