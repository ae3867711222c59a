"""`harness ckpt`: what a folder of checkpoints holds, whether it can be trusted, what may go; and
one more of a run that goes on."""

import time
from pathlib import Path
from typing import Any

import click

from harness import checkpointdir
from harness.checkpointdir import Found
from harness.cli import saving
from harness.cli.completing import complete_folders
from harness.cli.numbers import Whole
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import CheckpointError, ExitCode
from harness.sizes import size_text


@click.group("ckpt", invoke_without_command=True, context_settings=SETTINGS)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look after a folder of checkpoints that harness.Checkpointer has written, or have a run save
    one now.

    \b
      harness ckpt save swift-otter-12
      harness ckpt ls checkpoints
      harness ckpt verify checkpoints
      harness ckpt prune checkpoints --keep 3 --dry-run
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("missing command: save, ls, verify or prune")


command.add_command(saving.command)
_FOLDER = click.argument("directory", metavar="DIR", shell_complete=complete_folders)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")


@command.command(
    "ls", cls=ReadingCommand, context_settings=SETTINGS, short_help="List them, newest first."
)
@_FOLDER
@_JSON
def ls(directory: str, as_json: bool) -> None:
    """List the checkpoints in DIR, newest first, and say which do not count and why. Manifests
    and sizes are looked at, contents are not: that is verify.

    \b
      harness ckpt ls checkpoints
      harness ckpt ls checkpoints --json | jq '.checkpoints[0].step'
    """
    root = _root(directory)
    found = checkpointdir.look_at_all(root)
    rest = [path.name for path in checkpointdir.unfinished(root)]
    if as_json:
        print_json(_json(root, found) | {"unfinished": rest})
        return
    for one in found:
        click.echo(_line(one))
    for name in rest:
        click.echo(f"{name}  being written, or the save was interrupted")
    if not found and not rest:
        click.echo(f"no checkpoints in {root}")


@command.command(
    "verify",
    cls=ReadingCommand,
    context_settings=SETTINGS,
    short_help="Compare every file with its manifest.",
)
@_FOLDER
@click.option("--step", type=Whole(least=0), help="Only the checkpoint of this step.")
@_JSON
def verify(directory: str, step: int | None, as_json: bool) -> int:
    """Read every file of the checkpoints in DIR and compare it with its manifest. Exit code 1 when
    one is refused.

    \b
      harness ckpt verify checkpoints
      harness ckpt verify checkpoints --step 400
    """
    root = _root(directory)
    steps = checkpointdir.steps_present(root)
    if step is not None and step not in steps:
        raise CheckpointError(
            f"{root}: no checkpoint of step {step}", help=f"harness ckpt ls {root}"
        )
    found = []
    for one in steps if step is None else [step]:
        looked = checkpointdir.look(root, one)
        reason = checkpointdir.verify(looked)
        manifest = None if reason else looked.manifest
        judged = Found(step=one, path=looked.path, manifest=manifest, reason=reason)
        found.append(judged)
        if not as_json:
            click.echo(_line(judged, good="good"))
    if as_json:
        print_json(_json(root, found))
    elif not found:
        click.echo(f"no checkpoints in {root}")
    return ExitCode.SCRIPT_FAILED if any(one.reason for one in found) else ExitCode.OK


@command.command(
    "prune", cls=ReadingCommand, context_settings=SETTINGS, short_help="Delete old ones."
)
@_FOLDER
@click.option(
    "--keep", type=Whole(least=1), required=True, metavar="N", help="Newest ones to keep."
)
@click.option(
    "--keep-every",
    type=Whole(least=0),
    default=0,
    metavar="N",
    help="Keep every step that N divides.  [default: 0, none]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@_JSON
def prune(directory: str, keep: int, keep_every: int, dry_run: bool, as_json: bool) -> None:
    """Delete old checkpoints in DIR. Only those whose files are what was written count as kept, the
    newest two certified ones always stay, and refused ones are left alone.

    \b
      harness ckpt prune checkpoints --keep 3 --dry-run
      harness ckpt prune checkpoints --keep 3 --keep-every 1000
    """
    root = _root(directory)
    try:
        gone = checkpointdir.prune(
            root, keep=keep, keep_every=keep_every, check=True, dry_run=dry_run
        )
    except OSError as error:
        raise CheckpointError(f"{error.filename or root}: {error.strerror}") from None
    if as_json:
        print_json({"schema": SCHEMA, "dir": str(root), "dry_run": dry_run, "deleted": gone})
        return
    word = "would delete" if dry_run else "deleted"
    for step in gone:
        click.echo(f"{word} {checkpointdir.folder(root, step)}")
    if not gone:
        click.echo("nothing to delete")


def _root(directory: str) -> Path:
    root = Path(directory)
    if not root.is_dir():
        raise CheckpointError(
            f"{root}: no such folder", help="give the folder that holds step-… folders"
        )
    return root


def _line(one: Found, good: str = "") -> str:
    name = f"step {one.step:>8}"
    manifest = one.manifest
    if manifest is None:
        return f"{name}  refused: {one.reason}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.saved_ns / 1e9))
    mesh = " x ".join(f"{axis} {size}" for axis, size in manifest.mesh.items())
    ranks = f"{manifest.world_size} rank{'' if manifest.world_size == 1 else 's'}"
    words = [
        good,
        manifest.state,
        size_text(manifest.bytes),
        ranks + (f" ({mesh})" if mesh else ""),
    ]
    if manifest.vouched_by:
        words.append(f"vouched for by {', '.join(manifest.vouched_by)}")
    return f"{name}  {when}  " + ", ".join(filter(None, words))


def _json(root: Path, found: list[Found]) -> dict[str, Any]:
    """By harness/schemas/checkpoints.schema.json."""
    return {"schema": SCHEMA, "dir": str(root), "checkpoints": [_entry(one) for one in found]}


def _entry(one: Found) -> dict[str, Any]:
    manifest = one.manifest
    entry: dict[str, Any] = {
        "step": one.step,
        "path": str(one.path),
        "state": "refused" if manifest is None else manifest.state,
        "reason": one.reason or None,
    }
    if manifest is not None:
        entry |= {
            "vouched_by": list(manifest.vouched_by),
            "saved": manifest.saved_ns,
            "bytes": manifest.bytes,
            "world_size": manifest.world_size,
            "mesh": dict(manifest.mesh),
            "tensors": len(manifest.tensors),
            "values": dict(manifest.values),
        }
    return entry
