"""The configuration as a person gives it: a TOML file, and a flag for every field."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.trainer.compose import check
from harness.trainer.config import SECTIONS, Config, ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


def flag_of(f: dataclasses.Field[Any]) -> str:
    return "--" + str(f.metadata.get("flag", f.name.replace("_", "-")))


def _similar(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _coerce(f: dataclasses.Field[Any], kind: Any, value: object, where: str) -> object:
    """The value in the field's type, or a ConfigError that names `where` it was given."""
    wanted = {int: "an integer", float: "a number", str: "a text"}.get(kind, "true or false")
    if kind is float and type(value) is int:
        value = float(value)
    if kind not in (int, float, str):
        kind = bool
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{where} must be {wanted}, not {value!r}")
    limits = f.metadata
    if isinstance(value, int | float):
        if "least" in limits and value < limits["least"]:
            raise ConfigError(f"{where} must be at least {limits['least']:g}, not {value:g}")
        if "above" in limits and value <= limits["above"]:
            raise ConfigError(f"{where} must be above {limits['above']:g}, not {value:g}")
        if "below" in limits and value >= limits["below"]:
            raise ConfigError(f"{where} must be below {limits['below']:g}, not {value:g}")
        if "most" in limits and value > limits["most"]:
            raise ConfigError(f"{where} must be at most {limits['most']:g}, not {value:g}")
    if "choices" in limits and value not in limits["choices"]:
        raise ConfigError(f"{where} must be one of {', '.join(limits['choices'])}, not {value!r}")
    return value


def toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text, on every Python. Raises tomllib.TOMLDecodeError."""
    tables: dict[str, Any] = tomllib.loads(text)
    return tables


def read_toml(path: str) -> dict[str, dict[str, object]]:
    """Checked values of a TOML file by section and key.

    Raises ConfigError: unreadable, not TOML, unknown section or key, wrong type or range.
    """
    try:
        raw = toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None
    values: dict[str, dict[str, object]] = {}
    for section, content in raw.items():
        if section not in SECTIONS:
            raise ConfigError(
                f"{path}: unknown section [{section}]{_similar(section, [*SECTIONS])}"
            )
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {section} must be a section, [{section}]")
        known = {f.name: f for f in dataclasses.fields(SECTIONS[section])}
        kinds = typing.get_type_hints(SECTIONS[section])
        for key, value in content.items():
            where = f"{path}: [{section}] {key}"
            if key not in known:
                raise ConfigError(
                    f"{path}: unknown key {key} in [{section}]{_similar(key, [*known])}"
                )
            values.setdefault(section, {})[key] = _coerce(known[key], kinds[key], value, where)
    return values


class OneLineParser(argparse.ArgumentParser):
    """argparse whose errors are one line (ConfigError) and whose help can be silenced."""

    quiet = False

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def print_help(self, file: Any = None) -> None:
        if not self.quiet:
            super().print_help(file)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="train.py",
        usage="train.py [--config FILE] [flags]",
        description="Train a byte-level transformer; a flag wins over the TOML file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file of the settings")
    for section, cls in SECTIONS.items():
        group = parser.add_argument_group(f"[{section}]")
        kinds = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            shown = f"{f.metadata['help']} (default: {f.default!r})"
            more: dict[str, Any] = {"dest": f"{section}.{f.name}", "default": argparse.SUPPRESS}
            if kinds[f.name] in (int, float, str):
                more |= {"type": kinds[f.name], "metavar": kinds[f.name].__name__.upper()}
            else:
                more |= {"action": argparse.BooleanOptionalAction}
            group.add_argument(flag_of(f), help=shown.replace("%", "%%"), **more)
    return parser


def parse(argv: Sequence[str], *, quiet: bool = False) -> Config:
    """The configuration of a command line: defaults, then --config FILE, then flags.

    Raises ConfigError for anything wrong in itself; `layout` checks what depends on the world.
    """
    parser = _parser()
    parser.quiet = quiet
    given, unknown = parser.parse_known_args(list(argv))
    if unknown:
        word = unknown[0].split("=")[0]
        flags = [flag for action in parser._actions for flag in action.option_strings]
        raise ConfigError(f"unknown argument {word}{_similar(word, flags)}")
    options = vars(given)
    file = options.pop("config")
    values = read_toml(file) if file is not None else {}
    for dest, value in options.items():
        section, _, name = dest.partition(".")
        cls = SECTIONS[section]
        f = next(f for f in dataclasses.fields(cls) if f.name == name)
        kind = typing.get_type_hints(cls)[name]
        values.setdefault(section, {})[name] = _coerce(f, kind, value, flag_of(f))
    config = Config(**{name: cls(**values.get(name, {})) for name, cls in SECTIONS.items()})
    check(config)
    return config
