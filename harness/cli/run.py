"""`harness run`: torchrun's command line, checked whole before anything is started."""

import json
import os
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from harness import config as configuration
from harness import rundir
from harness.cli.completing import Complete, complete_files, complete_folders, one_of
from harness.cli.job import build, notes
from harness.config import Config, Job
from harness.errors import ScriptError, SettingsError, UsageError
from harness.launcher import Launcher, say
from harness.settings import BY_NAME, GROUPS, REFUSED, SETTINGS, Setting
from harness.version import version

HEAD = """\
Usage: harness run [OPTIONS] SCRIPT [ARGS]...

  Train: start SCRIPT on all ranks, watch it, restart it. A torchrun line works unchanged.

  harness run --nproc-per-node 8 train.py --lr 3e-4
  harness run --nproc-per-node gpu -m mypackage.train
  harness run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 train.py
"""
TAIL = """\
Other:
  --dry-run                      check everything and print the plan as JSON, start nothing
  -h, --help / --help-all        this help / all options
"""
TAIL_ALL = """\
Every option can also stand in harness.toml, in [tool.harness] of pyproject.toml, in
~/.config/harness/config.toml, or in HARNESS_<OPTION>; PET_<OPTION> counts where torchrun reads it.
"""


class RunCommand(click.Command):
    """Help of our own making: examples first, grouped, short unless --help-all."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Each option in the one spelling that the help has."""
        found = super().shell_complete(ctx, incomplete)
        return [item for item in found if not (item.value.startswith("--") and "_" in item.value)]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(help_text(whole=False))


def help_text(*, whole: bool) -> str:
    """The help of `harness run`; `whole` with every option."""
    parts = [HEAD]
    for group in GROUPS:
        members = [s for s in SETTINGS if s.group == group and (whole or s.common)]
        parts.append(f"{group}:\n" + "".join(_help_line(setting) for setting in members))
    parts.append(TAIL)
    return "\n".join([*parts, TAIL_ALL] if whole else parts)


def _help_line(setting: Setting) -> str:
    left = ", ".join(filter(None, (setting.short, setting.option)))
    if setting.metavar or setting.choices:
        left += f" {setting.metavar or '|'.join(setting.choices)}"
    words = setting.help
    if setting.kind != "flag" and setting.default not in (None, "", "0", "none", "default"):
        words += (
            f"  [default: {setting.default:g}]"
            if isinstance(setting.default, float)
            else f"  [default: {setting.default}]"
        )
    first = f"  {left:<29}  " if len(left) <= 29 else f"  {left}\n{'':33}"
    return first + f"\n{'':33}".join(textwrap.wrap(words, 67)) + "\n"


def _help_all(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(help_text(whole=True), nl=False)
        ctx.exit()


def _options() -> list[click.Option]:
    """One click option for each setting; values stay text, `settings.parse` reads them."""
    options: list[click.Option] = []
    for setting in SETTINGS:
        name = setting.option.removeprefix("--")
        spellings = {f"--{name}", f"--{name.replace('-', '_')}"}
        declarations = [setting.name, *sorted(spellings), *filter(None, [setting.short])]
        if setting.kind == "flag":
            options.append(click.Option(declarations, is_flag=True, default=None))
        else:
            options.append(
                click.Option(
                    declarations,
                    default=None,
                    multiple=setting.many,
                    metavar=setting.metavar or None,
                    shell_complete=_values_of(setting),
                )
            )
    for name in REFUSED:
        spellings = {f"--{name}", f"--{name.replace('_', '-')}"}
        flag = name == "virtual_local_rank"
        options.append(click.Option([name, *sorted(spellings)], is_flag=flag, default=None))
    return options


def _values_of(setting: Setting) -> Complete | None:
    if setting.choices:
        return one_of(setting.choices)
    return {"FILE": complete_files, "DIR": complete_folders}.get(setting.metavar)


def _run(script: str | None, args: tuple[str, ...], dry_run: bool, **given: Any) -> int:
    if script is None:
        raise ScriptError("no script given", help="for example: harness run train.py")
    config = _configure(given)
    job, placement = build(config, script, args)
    for line in [*configuration.unknown_variables(os.environ), *notes(config, args)]:
        say(line)
    # torchrun's default, so that ranks which share a machine do not fight for its cores.
    if job.nproc_per_node > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if dry_run:
        click.echo(json.dumps({**_facts(job), "settings": config.as_json()}, indent=1))
        return 0
    if placement.head:
        return _lead(config, job)
    ranks = "1 rank" if job.nproc_per_node == 1 else f"{job.nproc_per_node} ranks"
    say(f"joining the run at {placement.endpoint} with {ranks}")
    return Launcher(job, run_dir=None).run()


def _lead(config: Config, job: Job) -> int:
    """Be the head node. A run that never began leaves no directory."""
    name, run_dir = rundir.create(Path(job.runs_dir), config.text("run_name"))
    job = replace(job, run=name)
    configuration.write_config(run_dir / "config.json", config, **_facts(job))
    try:
        return Launcher(job, run_dir=run_dir).run()
    except UsageError:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _facts(job: Job) -> dict[str, object]:
    """What the settings came to, for config.json and --dry-run. The token stays out."""
    facts = {key: value for key, value in asdict(job).items() if key not in ("token", "policy")}
    return {"harness": version(), "job": facts}


def _configure(given: Mapping[str, Any]) -> Config:
    command_line: dict[str, str | bool] = {}
    for name, value in given.items():
        if value is None or value == ():
            continue
        if name in REFUSED:
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option} is not supported", help=REFUSED[name])
        command_line[name] = not BY_NAME[name].no if value is True else value
    return configuration.resolve(command_line)


command = RunCommand(
    "run",
    callback=_run,
    params=[
        *_options(),
        click.Option(["--dry-run"], is_flag=True),
        click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all
        ),
        click.Argument(["script"], required=False, shell_complete=complete_files),
        click.Argument(["args"], nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files),
    ],
    context_settings={
        # Everything after the script is the script's own, whatever it looks like.
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    },
)
