"""Where the values of a run come from, and `Job`, what the launcher tells agent and controller.

Precedence: command line > HARNESS_* > PET_* (torchrun's) > ./harness.toml > [tool.harness] in
./pyproject.toml > ~/.config/harness/config.toml > default. Every value keeps its origin.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from harness import slurm
from harness.errors import PlatformError, SettingsError, UsageError
from harness.policy import Policy
from harness.settings import BY_NAME, SETTINGS, Value, parse

Mode = Literal["script", "module", "command"]
NOT_SETTINGS = frozenset({"HARNESS_TOKEN"})
"""Variables of ours that are no settings. A token in a file of settings would be shared too far."""

OTHER_TABLES = frozenset({"tui"})
"""Tables of the same files that are no settings of a run."""

_TUPLES = (
    "script_args", "python_flags", "local_ranks_filter", "watch_checkpoints", "digest_exclude",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one node is asked to run. The environment is inherited and not part of it.

    `controller` is HOST:PORT, to bind on the head node and to join on the others; port 0 means
    any. `master_port` 0 means any too. `node_rank` -1: the controller gives it. `run` is empty
    on nodes that learn it from the controller.
    """

    run: str
    runs_dir: str
    script: str
    script_args: tuple[str, ...] = ()
    mode: Mode = "script"
    python: str
    python_flags: tuple[str, ...] = ()
    nnodes: int = 1
    min_nodes: int = 0
    """Least nodes to go on with; 0: all of them, and none is waited for in place of a lost one."""
    spares: int = 0
    grow: bool = True
    node_rank: int = 0
    nproc_per_node: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    policy: Policy = dataclasses.field(default_factory=Policy)
    chaos_allowed: bool = False
    zygote: bool = True
    preempt_signal: str = "TERM"
    controller: str = "127.0.0.1:0"
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    """Absolute paths of PEM files; empty: no TLS."""
    run_id: str = "none"
    """torchrun's --rdzv-id: TORCHELASTIC_RUN_ID of the workers."""
    role: str = "default"
    local_ranks_filter: tuple[int, ...] = ()
    """Local ranks shown on the console; empty means all, -1 none."""
    watch_checkpoints: tuple[str, ...] = ()
    """Folders whose checkpoint files are looked at."""
    digest_exclude: tuple[str, ...] = ()
    """Patterns of names of tensors that digests leave alone."""
    metrics_addr: str = "127.0.0.1"
    metrics_port: int = -1
    """Of the controller; agents take the next one. 0: any free ones, -1: no metrics."""
    cwd: str

    @property
    def run_dir(self) -> Path:
        return Path(self.runs_dir) / self.run

    def metrics_at(self, *, agent: bool) -> str:
        """HOST:PORT for the metrics of the agent or the controller; empty: none are wanted."""
        if self.metrics_port < 0:
            return ""
        host = f"[{self.metrics_addr}]" if ":" in self.metrics_addr else self.metrics_addr
        return (
            f"{host}:{self.metrics_port + 1 if agent and self.metrics_port else self.metrics_port}"
        )

    def write(self, path: Path | str) -> None:
        """Write it as JSON, readable by its owner alone: it may hold the token."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")

    @classmethod
    def read(cls, path: Path | str) -> "Job":
        """The job in the file at `path`. Raises PlatformError when it holds none."""
        try:
            raw: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            raw["policy"] = Policy(**raw["policy"])
            for name in _TUPLES:
                raw[name] = tuple(raw[name])
            return cls(**raw)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PlatformError(f"{path}: no job in it ({error})") from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A value and where it came from: an option, a variable, a file, or `default`."""

    value: Value
    origin: str


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """All settings of a run."""

    values: Mapping[str, Origin]

    def text(self, name: str) -> str:
        value = self.values[name].value
        return "" if value is None else str(value)

    def path(self, name: str) -> str:
        """A path as an absolute one; empty when there is none."""
        given = self.text(name)
        return os.path.abspath(os.path.expanduser(given)) if given else ""

    def flag(self, name: str) -> bool:
        return bool(self.values[name].value)

    def integer(self, name: str) -> int | None:
        value = self.values[name].value
        return None if value is None else int(value)

    def origin(self, name: str) -> str:
        return self.values[name].origin

    def given(self, name: str) -> bool:
        """Whether anybody set it."""
        return self.values[name].origin != "default"

    def as_json(self) -> dict[str, dict[str, Value]]:
        return {
            name: {"value": value.value, "origin": value.origin}
            for name, value in self.values.items()
        }

    @property
    def runs_dir(self) -> str:
        """Where run directories are made and looked for; torchrun's --log-dir counts too."""
        return self.text("runs_dir") or self.text("log_dir") or "runs"

    def policy(self, **changes: float | None) -> Policy:
        values: dict[str, Any] = {
            field.name: self.values[field.name].value
            for field in dataclasses.fields(Policy)
            if field.name in self.values
        }
        return Policy(**{**values, **changes})


def resolve(
    command_line: Mapping[str, str | bool],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """The value of every setting. Raises UsageError on an unknown key or an impossible value.

    `command_line` holds what was given there, by the setting's name.
    """
    environ = os.environ if environ is None else environ
    layers = [
        {
            name: Origin(value=parse(BY_NAME[name], raw, origin), origin=origin)
            for name, raw in command_line.items()
            for origin in (BY_NAME[name].option,)
        },
        _from_environ(environ, "HARNESS_", lambda setting: True),
        _from_environ(environ, "PET_", lambda setting: setting.pet),
        *(_from_file(path, table) for path, table in config_files(environ, cwd or Path.cwd())),
        {setting.name: Origin(value=setting.default, origin="default") for setting in SETTINGS},
    ]
    values: dict[str, Origin] = {}
    for layer in reversed(layers):
        values.update(layer)
    _ask_slurm(values, environ)
    return Config({setting.name: values[setting.name] for setting in SETTINGS})


def _ask_slurm(values: dict[str, Origin], environ: Mapping[str, str]) -> None:
    """Where nobody says how the nodes meet, and this is a task of srun, Slurm does. Weakest."""
    if any(values[name].origin != "default" for name in slurm.MEETING):
        return
    for name, (text, variable) in slurm.placed(environ).items():
        if values[name].origin == "default":
            value = parse(BY_NAME[name], text, variable)
            values[name] = Origin(value=value, origin=variable)


def config_files(environ: Mapping[str, str], cwd: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """The files that count, strongest first, each with the table to read in it."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "~"), ".config")
    candidates = [
        (cwd / "harness.toml", ()),
        (cwd / "pyproject.toml", ("tool", "harness")),
        (Path(home).expanduser() / "harness" / "config.toml", ()),
    ]
    return [(path, table) for path, table in candidates if path.is_file()]


def other_table(
    name: str, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[dict[str, Any], str]:
    """The table `name` of the strongest file that has it, and where that is; empty when none has.

    Raises UsageError when a file cannot be read or it is no table.
    """
    environ = os.environ if environ is None else environ
    for path, table in config_files(environ, cwd or Path.cwd()):
        found = _read_toml(path, table).get(name)
        if found is None:
            continue
        if not isinstance(found, dict):
            raise SettingsError(f"{path}: {'.'.join((*table, name))} is not a table")
        return found, str(path)
    return {}, ""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """HARNESS_* variables that look like a mistyped setting, each with the likely one in words.

    Others are left alone: a run started by a worker of another run inherits that one's.
    """
    found: list[str] = []
    known = {f"HARNESS_{setting.name.upper()}" for setting in SETTINGS} | NOT_SETTINGS
    for name in sorted(environ):
        if name.startswith("HARNESS_") and name not in known:
            likely = _closest(name, known)
            if likely:
                found.append(f"{name} is not a setting and does nothing; did you mean {likely}?")
    return found


def variable_problems(environ: Mapping[str, str]) -> list[UsageError]:
    """What is wrong with the values of variables that are settings."""
    wrong = []
    for setting in SETTINGS:
        for prefix in ("HARNESS_", *(("PET_",) if setting.pet else ())):
            variable = prefix + setting.name.upper()
            if variable in environ:
                try:
                    parse(setting, environ[variable], variable)
                except UsageError as error:
                    wrong.append(error)
    return wrong


def write_config(path: Path, config: Config, **facts: object) -> None:
    """The effective configuration with origins, and `facts` of this launch, as JSON."""
    data = {"schema": 1, **facts, "settings": config.as_json()}
    path.touch(mode=0o600)  # a script's arguments may hold secrets
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _from_environ(environ: Mapping[str, str], prefix: str, wanted: Any) -> dict[str, Origin]:
    layer: dict[str, Origin] = {}
    for setting in SETTINGS:
        variable = prefix + setting.name.upper()
        if wanted(setting) and variable in environ:
            value = parse(setting, environ[variable], variable)
            layer[setting.name] = Origin(value=value, origin=variable)
    return layer


def file_problems(path: Path, table: tuple[str, ...] = ()) -> tuple[int, list[UsageError]]:
    """How many settings of a file are right, and all that is wrong with the others."""
    right, wrong = 0, []
    try:
        keys = _read_toml(path, table)
    except UsageError as error:
        return 0, [error]
    for key, raw in keys.items():
        if _is_other_table(key, raw):
            continue
        try:
            _from_key(path, table, key, raw)
            right += 1
        except UsageError as error:
            wrong.append(error)
    return right, wrong


def _from_file(path: Path, table: tuple[str, ...]) -> dict[str, Origin]:
    layer: dict[str, Origin] = {}
    for key, raw in _read_toml(path, table).items():
        if not _is_other_table(key, raw):
            name, origin = _from_key(path, table, key, raw)
            layer[name] = origin
    return layer


def _is_other_table(key: str, raw: Any) -> bool:
    """Whether it is a table of settings that are not a run's."""
    return key.replace("-", "_") in OTHER_TABLES and isinstance(raw, dict)


def _from_key(path: Path, table: tuple[str, ...], key: str, raw: Any) -> tuple[str, Origin]:
    name = key.replace("-", "_")
    if name not in BY_NAME:
        likely = _closest(name, BY_NAME)
        raise SettingsError(
            f"{path}: unknown key {'.'.join((*table, key))!r}",
            help=f"did you mean {likely}?" if likely else "see harness run --help-all",
        )
    return name, Origin(value=parse(BY_NAME[name], raw, f"{path}: {key}"), origin=str(path))


def _read_toml(path: Path, table: tuple[str, ...]) -> dict[str, Any]:
    import sys

    try:
        text = path.read_text(encoding="utf-8")
        if ".".join(table) not in text:
            return {}  # others' business, even when it is broken
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        data: Any = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not text in UTF-8 (byte {error.start + 1})") from None
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
    for part in table:
        data = data.get(part, {})
        if not isinstance(data, dict):
            return {}
    result: dict[str, Any] = data
    return result


def _closest(name: str, known: Any) -> str:
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else ""
