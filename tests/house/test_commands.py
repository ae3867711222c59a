"""The command line as a whole: what is imported, what help says, which flags there are."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness.cli import COMMANDS, group, help_text
from harness.cli.run import command as run_command
from harness.settings import REFUSED, SETTINGS

HEAVY = {"torch", "grpc", "google", "msgspec", "psutil", "textual", "pydantic", "numpy"}

# Adding, renaming or removing an option is a decision: it changes this list and the changelog.
FLAGS = """\
--agent-timeout --audit-share --chaos-allowed --checkpoint-interval --controller-timeout
--digest-exclude --digest-share --digests --dry-run --evidence-budget --grow --help-all --last-call
--local-addr --local-ranks-filter --log-dir --looks-apart --master-addr --master-port --max-restarts
--metrics-addr --metrics-port --module --monitor-interval --nnodes --no-python --no-zygote
--node-rank --nproc-per-node --preempt-grace --preempt-signal --pulse-interval --quarantine
--rdzv-backend --rdzv-conf --rdzv-endpoint --rdzv-id --redirects --rendezvous-timeout --replays
--restart-window --role --run-name --run-path --runs-dir --same-failure-limit --settle
--shutdown-timeout --spares --stall-floor --standalone --start-method --start-patience --stop-grace
--stop-limit --strike-window --stuck-patience --teardown-patience --tee --tls-ca
--tls-cert --tls-key --token-file
--watch-checkpoints --work-patience
"""


def imported_by(*arguments: str) -> set[str]:
    """Modules that `harness ARGUMENTS` has imported when it ends."""
    code = (
        "import sys\nfrom harness.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_help_imports_next_to_nothing() -> None:
    assert (HEAVY | {"click", "asyncio"}).isdisjoint(imported_by("--help"))


@pytest.mark.parametrize("arguments", [("run", "--help"), ("run", "--help-all"), ("--version",)])
def test_help_of_run_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert HEAVY.isdisjoint(imported_by(*arguments))


def test_a_dry_run_imports_nothing_heavy(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert HEAVY.isdisjoint(imported_by("run", "--dry-run", str(script)))


def test_an_option_of_ours_behind_the_script_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stays the script's: torchrun's way. One that scripts have themselves is no news."""
    script = tmp_path / "train.py"
    script.write_text("")
    line = ["run", "--dry-run", str(script), "--nproc_per_node=4", "--log-dir", "x"]
    assert group.call(line) == 0
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "harness: --nproc_per_node stands behind the script and goes to it; "
        "before the script it would be ours"
    ]


def test_help_is_short_and_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, most in (
        (["--help"], 45),
        (["run", "--help"], 45),
        (["run", "--help-all"], 120),
    ):
        assert group.call(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= most
        assert max(map(len, lines)) <= 100


def everything() -> Iterator[tuple[str, ...]]:
    """All commands and their own commands, as they are typed."""
    for name, (module, _) in COMMANDS.items():
        yield (name,)
        command = importlib.import_module(module).command
        if isinstance(command, click.Group):
            yield from ((name, inner) for inner in command.commands)


@pytest.mark.parametrize("words", list(everything()), ids=" ".join)
def test_help_has_examples_first_and_fits_on_a_screen(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert group.call([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if re.search(r"INTEGER|FLOAT|x>=", line)]
    examples = [at for at, line in enumerate(lines) if line.startswith(f"  harness {words[0]}")]
    examples += [at for at, line in enumerate(lines) if line.startswith(f"    harness {words[0]}")]
    options = [at for at, line in enumerate(lines) if line in ("Options:", "Commands:", "Common:")]
    assert min(examples) < min(options)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_there_and_tells_about_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"  {name} " in help_text()
    assert group.call([name, "--help"]) == 0
    assert f"Usage: harness {name}" in capsys.readouterr().out


def test_the_flags_of_run_are_frozen() -> None:
    flags = {
        option
        for parameter in run_command.params
        for option in parameter.opts
        if option.startswith("--") and "_" not in option
    }
    refused = {f"--{name.replace('_', '-')}" for name in REFUSED}
    assert flags - refused == set(FLAGS.split())


def test_every_option_has_its_line_in_the_whole_help(capsys: pytest.CaptureFixture[str]) -> None:
    group.call(["run", "--help-all"])
    text = capsys.readouterr().out
    assert [s.option for s in SETTINGS if f" {s.option}" not in text] == []


def test_a_torchrun_line_is_understood() -> None:
    torchrun = pytest.importorskip("torch.distributed.run")
    ours = {option for parameter in run_command.params for option in parameter.opts}
    parser = torchrun.get_args_parser()
    theirs = {option for action in parser._actions for option in action.option_strings}
    assert theirs - ours - {"-h", "--help"} == set()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = group.call(list(arguments))
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "error", "help"),
    [
        (["rum"], "no such command: rum", "did you mean run?"),
        (["config", "shwo"], "no such command 'shwo'", "did you mean show?"),
        (
            ["bundle", "--logs", "tial"],
            "invalid value for '--logs': 'tial' is not one of 'tail', 'all', 'none'",
            "did you mean tail?",
        ),
        (["completion"], "missing argument 'bash|zsh|fish'", "see harness completion --help"),
        (
            ["doctor", "--ranks", "0"],
            "invalid value for '--ranks': '0' is not a whole number from 1 to 512",
            "see harness doctor --help",
        ),
        (
            ["replay", "--speed", "nan"],
            "invalid value for '--speed': 'nan' is not a number above 0",
            "see harness replay --help",
        ),
        (
            ["ckpt", "prune", "."],
            "missing option '--keep'",
            "see harness ckpt prune --help",
        ),
        (["--verison"], "no such option: --verison", "did you mean --version?"),
        (["run"], "no script given", "for example: harness run train.py"),
        (
            ["run", "--nproc-pr-node", "3", "x.py"],
            "no such option: --nproc-pr-node",
            "did you mean --nproc-per-node?",
        ),
        (
            ["run", "--nproc_pr_node", "3", "x.py"],
            "no such option: --nproc_pr_node",
            "did you mean --nproc-per-node?",
        ),
        (
            ["run", "--lr", "3", "x.py"],
            "no such option: --lr",
            "see harness run --help; the script's own options go after the script",
        ),
        (
            ["run", "--nproc-per-node"],
            "option '--nproc-per-node' requires an argument",
            "see harness run --help",
        ),
        (
            ["run", "--numa-binding", "node", "x.py"],
            "--numa-binding is not supported",
            "bind with numactl inside the script",
        ),
    ],
)
def test_a_wrong_line_is_answered_in_two(
    arguments: list[str], error: str, help: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(capsys, *arguments)
    assert code == 2
    assert [re.sub(r"^error\[H\d{3}\]", "error", line) for line in lines] == [
        f"error: {error}",
        f"help: {help}",
    ]


def test_a_bug_of_ours_is_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @click.command("run")
    def broken() -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("harness.cli.run.command", broken)
    code, lines = run(capsys, "run")
    assert code == 70
    assert lines[0] == "error[H900]: a bug in Harness: RuntimeError: first line"
    (report,) = tmp_path.glob("harness-bug-*.txt")
    assert str(report) in lines[1]
    assert "second line" in report.read_text()
    code, lines = run(capsys, "--debug", "run")
    assert lines[0] == "Traceback (most recent call last):"
