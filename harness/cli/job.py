"""From settings to a `Job`, everything checked that can be checked before anything is started."""

import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir, script
from harness.children import interpreter_flags
from harness.config import Config, Job, Mode
from harness.errors import AccessError, SettingsError
from harness.placement import (
    Placement,
    check_port_free,
    count_workers,
    is_local,
    place,
    rdzv_conf,
)
from harness.policy import Policy
from harness.settings import BY_NAME, parse, parse_ranks

if TYPE_CHECKING:
    from harness.wire.tls import Tls

UNDERSTOOD_RDZV_CONF = ("join_timeout", "timeout", "last_call_timeout", "is_host")


def build(config: Config, script_name: str, script_args: tuple[str, ...]) -> tuple[Job, Placement]:
    """The job of this node and its place in the run. Raises UsageError."""
    mode = _mode(config)
    # PYTHON_EXEC is torchrun's variable for another interpreter.
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    script.check(script_name, mode, same_python=python == sys.executable)
    if config.text("run_name"):
        rundir.check_name(config.text("run_name"))
    placement = place(config)
    workers = count_workers(config, python)
    token, tls = _token(config, placement), _tls(config, placement)
    _check_metrics(config, placement, token)
    if placement.head:
        _check_ports(config, placement)
    job = Job(
        run="",
        runs_dir=os.path.abspath(config.runs_dir),
        script=script_name,
        script_args=script_args,
        mode=mode,
        python=python,
        python_flags=tuple(interpreter_flags()),
        nnodes=placement.nnodes,
        min_nodes=placement.min_nodes,
        spares=placement.spares,
        grow=config.text("grow") == "auto",
        node_rank=placement.node_rank,
        nproc_per_node=workers,
        master_addr=placement.host,
        master_port=placement.store_port,
        policy=_policy(config),
        chaos_allowed=config.flag("chaos_allowed"),
        zygote=config.flag("zygote"),
        preempt_signal=config.text("preempt_signal"),
        controller=placement.bind if placement.head else placement.endpoint,
        token=token,
        tls_cert=tls.cert,
        tls_key=tls.key,
        tls_ca=tls.ca,
        run_id=config.text("rdzv_id"),
        role=config.text("role"),
        local_ranks_filter=_shown_ranks(config, workers),
        watch_checkpoints=_watched(config),
        digest_exclude=_excluded(config),
        metrics_addr=config.text("metrics_addr"),
        metrics_port=-1 if (port := config.integer("metrics_port")) is None else port,
        cwd=os.getcwd(),
    )
    return job, placement


_OURS_ALONE = frozenset(
    {"nproc-per-node", "nnodes", "node-rank", "max-restarts", "standalone", "rdzv-endpoint",
     "rdzv-backend", "rdzv-id", "local-ranks-filter", "chaos-allowed"}
)  # fmt: skip
"""Options that hardly any script has."""


def notes(config: Config, arguments: Sequence[str]) -> list[str]:
    """What was asked for and will have no effect, in words. `arguments` are the script's."""
    unknown = [
        f"--rdzv-conf {key} means nothing here and is passed over"
        for key in rdzv_conf(config)
        if key not in UNDERSTOOD_RDZV_CONF
    ]
    words = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    behind = [
        f"{word} stands behind the script and goes to it; before the script it would be ours"
        for word in words
        if word[2:].replace("_", "-") in _OURS_ALONE
    ]
    return [*unknown, *behind]


def _mode(config: Config) -> Mode:
    if config.flag("module") and config.flag("no_python"):
        raise SettingsError("--no-python and --module exclude each other", help="leave one out")
    return (
        "module" if config.flag("module") else "command" if config.flag("no_python") else "script"
    )


def _policy(config: Config) -> Policy:
    interval = config.text("checkpoint_interval")
    changes = {"checkpoint_interval": None if interval == "auto" else float(interval)}
    if config.given("shutdown_timeout") and not config.given("stop_grace"):
        changes["stop_grace"] = float(config.text("shutdown_timeout"))
    conf = rdzv_conf(config)
    timeouts = {
        "rendezvous_timeout": conf.get("join_timeout") or conf.get("timeout"),
        "last_call": conf.get("last_call_timeout"),
    }
    for name, seconds in timeouts.items():
        if seconds and not config.given(name):
            origin = config.origin("rdzv_conf")
            changes[name] = float(str(parse(BY_NAME[name], seconds, origin)))
    return config.policy(**changes)


def _watched(config: Config) -> tuple[str, ...]:
    """The folders to watch, absolute; they need not be there yet. Raises UsageError."""
    folders: list[str] = []
    for given in filter(None, config.text("watch_checkpoints").split(os.pathsep)):
        folder = os.path.abspath(os.path.expanduser(given))
        if os.path.exists(folder) and not os.path.isdir(folder):
            origin = config.origin("watch_checkpoints")
            raise SettingsError(
                f"{origin}: {given} is a file, not a directory",
                help="give the directory that the checkpoint files are saved in",
            )
        folders.append(folder)
    return tuple(dict.fromkeys(folders))


def _excluded(config: Config) -> tuple[str, ...]:
    """Patterns of names. Raises UsageError where none of the user's digests would be left."""
    patterns = [part for part in config.text("digest_exclude").split(os.pathsep) if part]
    for pattern in patterns:
        if not pattern.strip("*"):
            raise SettingsError(
                f"{config.origin('digest_exclude')}: {pattern} excludes every tensor",
                help="to take no digests at all give --digests 0",
            )
    return tuple(dict.fromkeys(patterns))


def _shown_ranks(config: Config, workers: int) -> tuple[int, ...]:
    """Local ranks whose output goes to the console; () means all, (-1,) none."""
    try:
        wanted = parse_ranks(config.text("local_ranks_filter"))
    except ValueError as error:
        raise SettingsError(
            f"{config.origin('local_ranks_filter')}: {error}", help="for example 0,1 or 0-3"
        ) from None
    redirected = _streams(config.text("redirects"), workers)
    if "3" not in redirected:
        return wanted
    teed = _streams(config.text("tee"), workers)
    shown = [r for r in range(workers) if redirected[r] != "3" or teed[r] != "0"]
    return tuple(rank for rank in shown if not wanted or rank in wanted) or (-1,)


def _streams(text: str, workers: int) -> list[str]:
    """torchrun's `3` or `0:3,1:1` as one of 0 to 3 for each local rank."""
    if ":" not in text:
        return [text] * workers
    given = dict(part.split(":") for part in text.split(","))
    return [given.get(str(rank), "0") for rank in range(workers)]


def _token(config: Config, placement: Placement) -> str:
    """The run's token; needed as soon as other machines can knock at the controller's door."""
    path = config.text("token_file")
    token = os.environ.get("HARNESS_TOKEN", "")
    if path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a text"
            raise AccessError(f"{config.origin('token_file')}: {path}: {why}") from None
        if not token:
            raise AccessError(f"{config.origin('token_file')}: {path} is empty")
    if not token and not placement.loopback:
        raise AccessError(
            f"a run that meets at {placement.endpoint} needs a token: others can reach that port",
            help="give the same secret to every node in HARNESS_TOKEN or with --token-file",
        )
    return token


def _tls(config: Config, placement: Placement) -> "Tls":
    """The files of TLS, checked. Raises UsageError."""
    from harness.wire.tls import PLAIN, Tls

    if not any(config.text(name) for name in ("tls_cert", "tls_key", "tls_ca")):
        return PLAIN
    found = Tls.of_config(config)
    if placement.head and not found.cert:
        raise AccessError(
            "--tls-ca on the head node needs --tls-cert and --tls-key too",
            help="the controller has to show a certificate; see docs/security.md",
        )
    return found


def _check_ports(config: Config, placement: Placement) -> None:
    check_port_free(placement.host, placement.store_port, "--master-port")
    host, _, port = placement.bind.rpartition(":")
    option = "--rdzv-endpoint" if config.text("rdzv_endpoint") else "--master-port"
    check_port_free(host.strip("[]"), int(port), option)


def _check_metrics(config: Config, placement: Placement, token: str) -> None:
    """Raises UsageError where nobody could read the metrics, or everybody."""
    port, origin = config.integer("metrics_port"), config.origin("metrics_port")
    if port is None:
        return
    if port > 65534:
        raise SettingsError(f"{origin}: {port} is no port with another one after it")
    if importlib.util.find_spec("prometheus_client") is None:
        raise SettingsError(
            f"{origin}: metrics need the package prometheus_client",
            help="pip install 'train-harness[metrics]'",
        )
    host, where = config.text("metrics_addr"), config.origin("metrics_addr")
    if not is_local(host) and host not in ("0.0.0.0", "::"):
        raise AccessError(f"{where}: {host} is no address of this machine")
    if not token and not socket.gethostbyname(host).startswith("127."):
        raise AccessError(
            f"{where}: metrics at {host} need a token: others can reach that port",
            help="give the run a secret in HARNESS_TOKEN or with --token-file",
        )
    if placement.head:
        check_port_free(host, port, "--metrics-port")
