"""`harness completion`: what a shell needs so that Tab completes commands, options and runs."""

import click

from harness.cli import COMPLETE
from harness.cli.reading import SETTINGS

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(_SHELLS), metavar="bash|zsh|fish")
def command(shell: str) -> None:
    """Print what makes Tab complete commands, options, runs, verdicts and faults.

    \b
      harness completion bash > ~/.local/share/bash-completion/completions/harness
      harness completion zsh > "${fpath[1]}/_harness"
      harness completion fish > ~/.config/fish/completions/harness.fish

    For this shell alone: source <(harness completion bash)
    """
    from click.shell_completion import get_completion_class

    from harness.cli.group import harness

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(harness, {}, "harness", COMPLETE).source())
