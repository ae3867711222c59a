"""Finding a run by name, directory, address or as the latest, and reading what it wrote."""

import difflib
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import bundles, config, journal
from harness.errors import NodeFailure, UsageError
from harness.state import RunState, fold

if TYPE_CHECKING:
    from harness.wire.tls import Tls

ENV_RUNS_DIR = "HARNESS_RUNS_DIR"
ENV_TOKEN = "HARNESS_TOKEN"
LATEST = "latest"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,6})")
_SHOWN = 6
_LIVE_SECONDS = 5.0
_QUIET_SECONDS = 0.5


class RunNotFound(UsageError):
    """The run that was asked for is not here; `help` says which are."""

    code = "H101"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run on this file system."""

    path: Path
    packed: bool = False
    """It came in a bundle: how it was at one moment. Nothing more will come, and nobody of it is
    here."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / journal.FILE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A run behind the address of its controller."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """Who leads the run. `alive` None: it is on another machine and cannot be seen from here."""

    address: str
    pid: int
    alive: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run as its journal tells it. `notes` say in one line each what was left out."""

    state: RunState
    notes: tuple[str, ...]


def runs_dir(given: str | None) -> Path:
    """Where runs are: `given`, else as `harness run` would choose it (environment, files)."""
    return Path(config.resolve({"runs_dir": given} if given else {}).runs_dir)


def token() -> str:
    """The token for controllers beyond loopback, from $HARNESS_TOKEN."""
    return os.environ.get(ENV_TOKEN, "")


def tls() -> "Tls":
    """The files of TLS for controllers that speak it, from the settings. Raises UsageError."""
    from harness.wire.tls import Tls  # grpc is heavy, and only this needs it

    return Tls.of_config(config.resolve({}))


def find(argument: str | None, root: Path) -> RunFolder | Endpoint:
    """The run that `argument` means; None means the latest in `root`. A bundle is unpacked.

    Raises RunNotFound, with the nearest names and what there is.
    """
    if argument is None or argument == LATEST:
        return _latest(root)
    for candidate in (root / argument, Path(argument)):
        if candidate.name == journal.FILE_NAME and candidate.is_file():
            return RunFolder(path=candidate.resolve().parent)
        if candidate.is_dir() and is_run(candidate):
            return RunFolder(path=candidate.resolve())
    address = _ADDRESS.fullmatch(argument)
    if address is not None:
        if not 0 < int(address[2]) < 65536:
            raise UsageError(f"{argument}: a port is a number from 1 to 65535")
        return Endpoint(address=argument)
    if Path(argument).is_file():
        if bundles.is_bundle(Path(argument)):
            return RunFolder(path=bundles.unpack(Path(argument)), packed=True)
        raise RunNotFound(
            f"{argument} is neither a run nor a bundle of one", help=_what_there_is(root)
        )
    if Path(argument).is_dir():
        raise RunNotFound(
            f"{argument} is not a run directory: it has no {journal.FILE_NAME}",
            help=_what_there_is(root),
        )
    names = run_names(root)
    near = difflib.get_close_matches(argument, names, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise RunNotFound(f"no run {argument!r} in {root}", help=meant + _what_there_is(root))


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run; one that is just starting has only its job so far."""
    return (folder / journal.FILE_NAME).is_file() or (folder / "job.json").is_file()


def run_names(root: Path) -> list[str]:
    """Names of the runs in `root`, newest first."""
    try:
        folders = [entry for entry in root.iterdir() if entry.name != LATEST and is_run(entry)]
    except OSError:
        return []
    return [f.name for f in sorted(folders, key=lambda f: (-f.stat().st_mtime_ns, f.name))]


def _latest(root: Path) -> RunFolder:
    link = root / LATEST
    if is_run(link):
        return RunFolder(path=link.resolve())
    names = run_names(root)
    if names:
        return RunFolder(path=(root / names[0]).resolve())
    raise RunNotFound(f"no run in {root}", help=_what_there_is(root))


def _what_there_is(root: Path) -> str:
    names = run_names(root)
    if not names:
        return (
            "start one with `harness run train.py`, "
            f"or say where runs are with --runs-dir or {ENV_RUNS_DIR}"
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"runs in {root}: {', '.join(names[:_SHOWN])}{more}"


def read(found: RunFolder | Endpoint) -> Reading:
    """The run's state up to this moment, from its journal or from its controller.

    A torn last line and damaged lines of a journal are left out and noted; a run that has no
    journal yet is empty. Raises HarnessError when there is no reading it.
    """
    if isinstance(found, Endpoint):
        import asyncio  # as heavy as reading a small folder, which has no need of it

        return asyncio.run(_read_live(found))
    return _read_journal(found)


async def _read_live(found: Endpoint) -> Reading:
    """A watch never says that it has caught up. It has when a record is younger than the question,
    or when nothing more comes for a while; a busy run is cut off after five seconds."""
    import asyncio

    from harness.wire import observer  # grpc is heavy, and only this needs it

    asked_ns = time.time_ns()
    until = time.monotonic() + _LIVE_SECONDS
    state = RunState()
    records = observer.watch(found.address, 0, token(), tls())
    while time.monotonic() < until:
        patience = _LIVE_SECONDS if state.run is None else _QUIET_SECONDS
        try:
            _, record = await asyncio.wait_for(anext(records), patience)
        except (asyncio.TimeoutError, StopAsyncIteration):
            break
        fold(state, record)
        if record.stamp.wall_ns > asked_ns or state.ended is not None:
            break
    await records.aclose()  # type: ignore[attr-defined]
    if state.run is None:
        raise NodeFailure(f"the controller at {found.address} sent nothing")
    return Reading(state=state, notes=())


def _read_journal(folder: RunFolder) -> Reading:
    notes: list[str] = []
    state = RunState()
    if has_header(folder.journal):
        for record in journal.read(folder.journal, on_bad="skip", say=notes.append):
            fold(state, record)
    if folder.packed and state.ended is None:
        notes.append("the run went on when it was bundled; this is how it was then")
    return Reading(state=state, notes=tuple(notes))


def has_header(path: Path) -> bool:
    """Whether the first line of a journal is whole: a run may be starting this moment."""
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False


def controller_facts(folder: RunFolder, state: RunState) -> ControllerFacts | None:
    """The controller of a run and whether it lives; None when it has not come up yet."""
    try:
        raw = json.loads((folder.path / "controller.json").read_text())
        address, pid = str(raw["address"]), int(raw["pid"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    head = state.nodes.get(0)
    if head is not None and head.host not in ("", socket.gethostname()):
        return ControllerFacts(address=address, pid=pid, alive=None)
    return ControllerFacts(address=address, pid=pid, alive=_is_ours(pid, b"harness.controller"))


def is_gone(found: RunFolder | Endpoint, state: RunState) -> bool:
    """Whether a run of this machine has not ended, and yet no process that leads it is left. Its
    launcher starts a controller anew within a moment: ask again before it is believed for good."""
    if isinstance(found, Endpoint) or found.packed or state.ended is not None:
        return False
    controller = controller_facts(found, state)
    return controller is not None and controller.alive is False and not has_agents(state)


def has_agents(state: RunState) -> bool | None:
    """Whether an agent of the run lives on this machine; None when none of them is from here."""
    here = [node for node in state.nodes.values() if node.host == socket.gethostname()]
    return any(_is_ours(node.pid, b"harness.agent") for node in here) if here else None


def _is_ours(pid: int, module: bytes) -> bool:
    """Whether process `pid` lives and runs `module`: process numbers are used again."""
    try:
        return module in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
