"""Run directories: their names, their making, and the `latest` link. Reading them is runs.py."""

import os
import random
import re
from pathlib import Path

from harness.errors import OutputError, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ADJECTIVES = (
    "amber brave bright brisk calm clear cosy crisp dapper eager early fair fleet fond gentle "
    "glad golden grand green happy hardy humble jolly keen kind light lively lucky mellow merry "
    "mild neat nimble noble patient plain proud quick quiet rapid ready robust rosy royal sharp "
    "silent silver sleek smart snug solid spry steady still sunny swift tidy vivid warm wise witty"
)
NOUNS = (
    "badger beaver bison crane condor deer dolphin eagle elk falcon ferret finch fox gecko gull "
    "hare hawk heron ibex ibis jackal jay kestrel kiwi koala lark lemur lion lynx magpie marlin "
    "marten mole moose newt ocelot orca osprey otter owl panda petrel pike plover puffin puma "
    "quail rabbit raven robin salmon seal shrew skua sparrow stoat stork swan swift tapir tern "
    "thrush tiger toucan trout turtle vole walrus weasel whale wolf wombat wren yak zebra"
)
LATEST = "latest"
PRIVATE = 0o700
"""Of a run's directory: logs, stacks and command lines are the business of its owner alone."""


def check_name(name: str) -> None:
    """Raise UsageError unless `name` can name a run."""
    if not NAME.fullmatch(name) or name == LATEST:
        raise UsageError(
            f"--run-name: {name!r} cannot name a run",
            help="use letters, digits, dots, dashes and underscores, at most 64; not `latest`",
        )


def new_name(runs_dir: Path) -> str:
    """A short, speakable name that is free in `runs_dir`."""
    draw = random.SystemRandom()
    adjectives, nouns = ADJECTIVES.split(), NOUNS.split()
    while True:
        name = f"{draw.choice(adjectives)}-{draw.choice(nouns)}-{draw.randint(10, 99)}"
        if not (runs_dir / name).exists():
            return name


def create(runs_dir: Path, name: str) -> tuple[str, Path]:
    """Make the directory of a new run; an empty `name` stands for a new one.

    Returns the name and the directory. Raises UsageError when it cannot be.
    """
    if name:
        check_name(name)
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        while True:
            chosen = name or new_name(runs_dir)
            try:
                (runs_dir / chosen).mkdir(mode=PRIVATE)
                break
            except FileExistsError:
                if name:
                    raise UsageError(
                        f"run {name} already exists in {runs_dir}",
                        help="choose another --run-name, or leave it out",
                    ) from None
        (runs_dir / chosen / "logs").mkdir(mode=PRIVATE)
    except OSError as error:
        raise OutputError(
            f"cannot make a run directory in {runs_dir}: {error.strerror}",
            help="choose a folder that you may write to with --runs-dir",
        ) from None
    return chosen, runs_dir / chosen


def link_latest(runs_dir: Path, name: str) -> None:
    """Point `latest` at run `name`; something else of that name is left alone."""
    link = runs_dir / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = runs_dir / f".{LATEST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    temporary.replace(link)
