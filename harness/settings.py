"""Everything that can be set for a run: names, kinds, defaults, and the words of the help.

One table serves the command line, `HARNESS_*` and torchrun's `PET_*` variables, and the
configuration files. Names are torchrun's where torchrun has the option.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Literal

from harness.errors import SettingsError
from harness.policy import Policy
from harness.policyhelp import NODE_FILES, OFF, POLICY_HELP, Group

Kind = Literal["text", "int", "float", "flag"]
Value = str | int | float | bool | None
GROUPS: tuple[Group, ...] = (
    "Common",
    "Several nodes",
    "Fault tolerance",
    "Hangs",
    "Output",
    "Advanced",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that can be set.

    `pet` means that torchrun has it too and reads `PET_<NAME>`. `common` puts it into the short
    help. `no` means that the flag is spoken as `--no-<name>` on the command line.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    group: Group
    short: str = ""
    pet: bool = False
    common: bool = False
    no: bool = False
    many: bool = False
    """May be given several times; the value is one text, its parts joined as in PATH."""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    metavar: str = ""

    @property
    def option(self) -> str:
        """As it is spelled on the command line."""
        return "--" + ("no-" if self.no else "") + self.name.replace("_", "-")


_STD = "0-3, or per local rank such as 0:3,1:1"


def _metavar(name: str, default: int | float) -> str:
    if isinstance(default, int):
        return "N"
    return "SHARE" if name.endswith("share") else "SECONDS"


def _policy_settings() -> tuple[Setting, ...]:
    settings: list[Setting] = []
    for field in dataclasses.fields(Policy):
        if field.name not in POLICY_HELP:
            continue
        group, common, at_least, words = POLICY_HELP[field.name]
        default = field.default
        assert isinstance(default, int | float)
        settings.append(
            Setting(
                name=field.name,
                kind="int" if isinstance(default, int) else "float",
                default=default,
                help=words,
                group=group,
                common=common,
                at_least=at_least,
                pet=field.name == "max_restarts",
                metavar=_metavar(field.name, default),
            )
        )
    return tuple(settings)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="nproc_per_node",
        kind="text",
        default="1",
        pet=True,
        common=True,
        group="Common",
        help="workers on this node",
        metavar="N|auto|cpu|gpu",
    ),
    Setting(
        name="module",
        kind="flag",
        default=False,
        short="-m",
        pet=True,
        common=True,
        group="Common",
        help="SCRIPT is a module, as in python -m",
    ),
    Setting(
        name="no_python",
        kind="flag",
        default=False,
        pet=True,
        common=True,
        group="Common",
        help="SCRIPT is a program, not Python",
    ),
    Setting(
        name="run_name",
        kind="text",
        default="",
        common=True,
        group="Common",
        help="name of the run  [default: a new one such as swift-otter-12]",
        metavar="NAME",
    ),
    Setting(
        name="standalone",
        kind="flag",
        default=False,
        pet=True,
        group="Common",
        help="one node, any free port; what happens anyway with one node",
    ),
    Setting(
        name="run_path",
        kind="flag",
        default=False,
        pet=True,
        group="Advanced",
        help="accepted: a script is always run inside the worker's own interpreter",
    ),
    Setting(
        name="nnodes",
        kind="text",
        default="1",
        pet=True,
        common=True,
        group="Several nodes",
        help="nodes of the run; MIN:MAX to go on when some are lost",
        metavar="N|MIN:MAX",
    ),
    Setting(
        name="spares",
        kind="int",
        default=0,
        group="Several nodes",
        at_least=0,
        help="nodes more that wait, ready, to take the place of lost ones",
        metavar="K",
    ),
    Setting(
        name="grow",
        kind="text",
        default="auto",
        group="Several nodes",
        choices=("auto", "never"),
        help="restart with nodes that join later, after a checkpoint that all ranks saved",
    ),
    Setting(
        name="node_rank",
        kind="int",
        default=None,
        pet=True,
        common=True,
        group="Several nodes",
        at_least=0,
        help="which node this is; 0 holds the controller  [default: found out]",
        metavar="N",
    ),
    Setting(
        name="master_addr",
        kind="text",
        default="127.0.0.1",
        pet=True,
        common=True,
        group="Several nodes",
        help="address of node 0",
        metavar="HOST",
    ),
    Setting(
        name="master_port",
        kind="int",
        default=None,
        pet=True,
        common=True,
        group="Several nodes",
        at_least=0,
        help="port on node 0  [default: any; 29500 with several nodes]",
        metavar="PORT",
    ),
    Setting(
        name="rdzv_endpoint",
        kind="text",
        default="",
        pet=True,
        common=True,
        group="Several nodes",
        help="the same in one, instead of --master-addr and --master-port",
        metavar="HOST:PORT",
    ),
    *(
        Setting(name=n, kind="text", default="", common=c, group=GROUPS[1], help=h, metavar="FILE")
        for n, c, h in NODE_FILES
    ),
    Setting(
        name="rdzv_backend",
        kind="text",
        default="static",
        pet=True,
        group="Several nodes",
        choices=("static", "c10d"),
        help="accepted: nodes always meet at the controller",
    ),
    Setting(
        name="rdzv_id",
        kind="text",
        default="none",
        pet=True,
        group="Several nodes",
        help="TORCHELASTIC_RUN_ID of the workers",
        metavar="ID",
    ),
    Setting(
        name="rdzv_conf",
        kind="text",
        default="",
        pet=True,
        group="Several nodes",
        help="join_timeout, timeout, last_call_timeout and is_host are understood",
        metavar="K=V,...",
    ),
    Setting(
        name="local_addr",
        kind="text",
        default="",
        pet=True,
        group="Several nodes",
        help="accepted: nodes meet at the head's address alone",
        metavar="HOST",
    ),
    *_policy_settings(),
    Setting(
        name="checkpoint_interval",
        kind="text",
        default="auto",
        group="Fault tolerance",
        help="seconds between saves, told to scripts that ask for it; auto: what loses least by the"
        " run's own numbers, 0: the script decides",
        metavar="auto|SECONDS",
    ),
    Setting(
        name="watch_checkpoints",
        kind="text",
        default="",
        many=True,
        group="Fault tolerance",
        help="check the checkpoint files that are saved below DIR; several times, or DIR:DIR",
        metavar="DIR",
    ),
    Setting(
        name="digest_exclude",
        kind="text",
        default="",
        many=True,
        group="Fault tolerance",
        help="no digests of tensors named so, as in ema.*",
        metavar="PATTERN",
    ),
    Setting(
        name="shutdown_timeout",
        kind="float",
        default=None,
        pet=True,
        group="Fault tolerance",
        at_least=0,
        help="torchrun's word for --stop-grace",
        metavar="SECONDS",
    ),
    Setting(
        name="preempt_signal",
        kind="text",
        default="TERM",
        group="Fault tolerance",
        choices=("TERM", "USR1", "USR2"),
        help="a signal that preempts the run, besides SIGTERM",
    ),
    Setting(
        name="chaos_allowed",
        kind="flag",
        default=False,
        common=True,
        group="Fault tolerance",
        help="let `harness inject` do harm to this run",
    ),
    Setting(
        name="zygote",
        kind="flag",
        default=True,
        no=True,
        common=True,
        group="Advanced",
        help="start each worker as a fresh process instead of forking it",
    ),
    Setting(
        name="runs_dir",
        kind="text",
        default="",
        common=True,
        group="Output",
        help="where run directories go  [default: runs]",
        metavar="DIR",
    ),
    Setting(
        name="log_dir",
        kind="text",
        default="",
        pet=True,
        group="Output",
        help="torchrun's word for --runs-dir",
        metavar="DIR",
    ),
    Setting(
        name="redirects",
        kind="text",
        default="0",
        short="-r",
        pet=True,
        group="Output",
        help=f"keep ranks with 3 off the console, in their log files only: {_STD}",
        metavar="STD",
    ),
    Setting(
        name="tee",
        kind="text",
        default="0",
        short="-t",
        pet=True,
        group="Output",
        help="accepted: all output goes to log files and to the console anyway",
        metavar="STD",
    ),
    Setting(
        name="local_ranks_filter",
        kind="text",
        default="",
        pet=True,
        common=True,
        group="Output",
        help="show these local ranks only; log files stay whole",
        metavar="0,1,...",
    ),
    Setting(
        name="metrics_port",
        kind="int",
        default=None,
        group="Output",
        at_least=0,
        help="metrics for Prometheus; agents take the next port; 0: any free",
        metavar="PORT",
    ),
    Setting(
        name="metrics_addr",
        kind="text",
        default="127.0.0.1",
        group="Output",
        help="where to tell them; beyond loopback to those with the token",
        metavar="HOST",
    ),
    Setting(
        name="role",
        kind="text",
        default="default",
        pet=True,
        group="Advanced",
        help="ROLE_NAME of the workers",
        metavar="NAME",
    ),
    Setting(
        name="monitor_interval",
        kind="float",
        default=None,
        pet=True,
        group="Advanced",
        at_least=0,
        help="accepted: exits are noticed at once, nothing is polled",
        metavar="SECONDS",
    ),
    Setting(
        name="start_method",
        kind="text",
        default="spawn",
        pet=True,
        group="Advanced",
        choices=("spawn", "fork", "forkserver"),
        help="accepted: see --no-zygote",
    ),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

REFUSED: Mapping[str, str] = {
    "numa_binding": "bind with numactl inside the script",
    "virtual_local_rank": "use LOCAL_RANK, or set CUDA_VISIBLE_DEVICES in the script",
    "logs_specs": "logs of all ranks are kept whole under the run directory",
    "event_log_handler": "every event is in the run's journal.jsonl",
    "signals_to_handle": "SIGINT and SIGHUP stop the run, SIGTERM and --preempt-signal preempt it",
    "duplicate_stdout_filters": "use `harness logs --grep` on the whole logs",
    "duplicate_stderr_filters": "use `harness logs --grep` on the whole logs",
}
"""What torchrun has and we do not, with what to do instead."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")
_INTERVAL_PATTERN = re.compile(r"auto|\d+(\.\d*)?")
_STD_PATTERN = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")


def parse(setting: Setting, raw: object, origin: str) -> Value:
    """`raw`, from a command line, a variable or a TOML file, as a value of `setting`.

    Raises UsageError naming `origin` when it is not one.
    """
    value = _convert(setting, raw)
    if value is None:
        what = {"int": "a whole number", "float": "a number", "flag": "true or false"}
        raise SettingsError(f"{origin}: {raw!r} is not {what.get(setting.kind, 'a text')}")
    if setting.choices and value not in setting.choices:
        raise SettingsError(
            f"{origin}: {raw!r} is not possible", help=f"choose {' or '.join(setting.choices)}"
        )
    if setting.at_least is not None and not float(value) >= setting.at_least:
        off = OFF.get(setting.name) if float(value) == 0 else None
        raise SettingsError(f"{origin}: {raw} is less than {setting.at_least:g}", help=off)
    if setting.name.endswith("share") and not float(value) <= 1:
        raise SettingsError(
            f"{origin}: {raw} is more than the whole", help="give a share of 1, such as 0.01"
        )
    if setting.name in ("redirects", "tee") and not _STD_PATTERN.fullmatch(str(value)):
        raise SettingsError(f"{origin}: {raw!r} is not a choice of streams", help=f"give {_STD}")
    if setting.name == "checkpoint_interval" and not _INTERVAL_PATTERN.fullmatch(str(value)):
        raise SettingsError(f"{origin}: {raw!r} is not possible", help="give auto or seconds, or 0")
    return value


def _convert(setting: Setting, raw: object) -> Value:
    """None when `raw` cannot be a value of that kind."""
    text = isinstance(raw, str)
    match setting.kind:
        case "text" if setting.many and isinstance(raw, list | tuple):
            texts = [part for part in raw if isinstance(part, str)]
            return os.pathsep.join(texts) if len(texts) == len(raw) else None
        case "text":
            fraction = setting.name == "checkpoint_interval" and type(raw) is float
            return str(raw) if text or type(raw) is int or fraction else None
        case "flag":
            if isinstance(raw, bool):
                return raw
            lowered = str(raw).lower()
            return True if lowered in _TRUE else False if lowered in _FALSE else None
        case _:
            if isinstance(raw, bool) or not isinstance(raw, str | int | float):
                return None
            try:
                number = float(raw)
                if setting.kind == "float":
                    return number if number == number and abs(number) != float("inf") else None
                return int(raw) if text or number == int(number) else None
            except (ValueError, OverflowError):
                return None


def parse_ranks(text: str) -> tuple[int, ...]:
    """`0-2,5` as (0, 1, 2, 5); an empty text as (). Raises ValueError."""
    ranks: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{part!r} is not a rank or a range of ranks")
        ranks.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ranks))
