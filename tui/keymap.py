"""Keys of one's own: `[tui.keys]` in a configuration file, by the names of the actions.

[tui.keys]
next-bad = "b"
stop = ["S", "ctrl+k"]
mute = ""              # no key; the palette still has it
"""

import difflib
from collections.abc import Mapping
from typing import Any

from harness.errors import SettingsError
from harness.tui.actions import ACTIONS, BY_NAME, KEY_WORDS

_NAMES = {word: name for name, word in KEY_WORDS.items()}
_SPECIAL = {*KEY_WORDS, "tab", "insert", "delete", "backspace", *(f"f{n}" for n in range(1, 25))}


def keymap(given: Mapping[str, Any], origin: str) -> dict[str, str]:
    """Keys of all actions, `given` over the defaults. Raises UsageError naming `origin`.

    A key that is given to one action is taken from the others that had it by default.
    """
    keys = {action.name: action.keys for action in ACTIONS}
    chosen: dict[str, str] = {}
    for written, value in given.items():
        name = written.replace("_", "-")
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
            raise SettingsError(
                f"{origin}: tui.keys.{name}: no such action",
                help=f"did you mean {near[0]}?" if near else f"there are {', '.join(BY_NAME)}",
            )
        for key in _keys(value, name, origin):
            if key in chosen:
                raise SettingsError(
                    f"{origin}: key {key!r} is given to {chosen[key]} and to {name}"
                )
            chosen[key] = name
        keys[name] = ",".join(key for key, of in chosen.items() if of == name)
    for name in keys.keys() - {each.replace("_", "-") for each in given}:
        kept = [key for key in keys[name].split(",") if key not in chosen]
        keys[name] = ",".join(kept)
    if not keys["detach"]:
        raise SettingsError(f"{origin}: tui.keys: no key is left for detach")
    return keys


def _keys(value: Any, name: str, origin: str) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise SettingsError(
            f"{origin}: tui.keys.{name}: a key or a list of keys is wanted", help='such as "b"'
        )
    return [_key(each, name, origin) for each in values if each]


def _key(text: str, name: str, origin: str) -> str:
    key = _NAMES.get(text, text)
    plain = key.removeprefix("ctrl+").removeprefix("alt+").removeprefix("shift+")
    if (len(plain) == 1 and plain.isalnum()) or plain in _SPECIAL:
        return key
    raise SettingsError(
        f"{origin}: tui.keys.{name}: {text!r} is no key",
        help="for example b, B, ctrl+k, f5, space, or one of ? / : + - @ . , [ ]",
    )
