"""The reading commands as the shell meets them: output, exit codes, errors, JSON."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry, Resource

from harness.cli.group import call

SCHEMAS = Path(importlib.util.find_spec("harness").origin).parent / "schemas"
COMMANDS = ("status", "report", "logs", "tui")


@pytest.fixture
def root(tmp_path, scenes, monkeypatch):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, make in scenes.SCENES.items():
        path = make().write(folder, name=name)
        if name != "gathering":
            lines = {rank: [f"step={step}" for step in range(1, 213)] for rank in range(8)}
            lines[5].append("[rank5]: ValueError: boom")
            scenes.write_logs(path, 0, lines)
        if name in ("restarted", "finished"):
            scenes.write_logs(path, 1, {rank: ["step=201", "step=202"] for rank in range(8)})
    monkeypatch.setenv("HARNESS_RUNS_DIR", str(folder))
    return folder


@pytest.fixture
def harness(root, capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = call(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "\x1b" not in out + err
        return int(code), out, err

    return run


def shell(root, *arguments, **options):
    """The command line in a process of its own."""
    code = "import sys; from harness.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HARNESS_RUNS_DIR": str(root)},
        **options,
    )


def test_status_tells_one_screen(harness):
    code, out, err = harness("status", "crashed")
    assert (code, err) == (4, "")
    assert "EXCEPTION  rank 5 (dp1 pp0 tp1): ValueError: boom [not markup]" in out
    assert re.search(r"^ranks +5 +dead +step 212 .*dp1 pp0 tp1$", out, re.M)
    assert re.search(r"^ +0-4,6-7 +waiting +step 212", out, re.M)
    assert "checkpoint  step 200" in out
    assert len(out.splitlines()) <= 24


@pytest.mark.parametrize(("name", "code"), [("gathering", 0), ("finished", 3), ("failed", 3)])
def test_status_says_health_in_its_exit_code(harness, name, code):
    assert harness("status", name)[0] == code


def test_status_of_a_living_run_is_healthy(harness, root, scenes, monkeypatch):
    now = scenes.running().now_ns
    monkeypatch.setattr("harness.cli.status.time.time_ns", lambda: now)
    code, out, _ = harness("status", "running")
    assert code == 0
    assert "all 8 ranks well" in out


def test_status_of_a_run_whose_processes_are_gone(harness, root, scenes):
    scene = scenes.running()
    scene.records = [
        record if type(record.event).__name__ != "AgentJoined" else _joined_here(record)
        for record in scene.records
    ]
    folder = scene.write(root, name="gone")
    facts = {"address": "127.0.0.1:4711", "pid": os.getpid()}
    (folder / "controller.json").write_text(json.dumps(facts))
    code, out, _ = harness("status", "gone")
    assert code == 3
    assert "interrupted" in out
    assert "no process of it is left" in out
    told = json.loads(harness("status", "gone", "--json")[1])
    assert told["stage"] == "interrupted"
    assert told["summary"][0].startswith("GONE  no process of it is left")
    assert {rank["state"] for rank in told["ranks"]} == {"stopped"}
    assert "interrupted after" in harness("report", "gone")[1]
    assert ">interrupted<" in harness("report", "gone", "--html", "-")[1]
    code, _, err = harness("logs", "gone", "-f", "-n", "1")
    assert code == 0
    assert "gone without an end" in err


def _joined_here(record):
    from dataclasses import replace

    event = replace(record.event, host=socket.gethostname(), pid=os.getpid())
    return replace(record, event=event)


@pytest.mark.parametrize("name", ["gathering", "running", "crashed", "restarted", "finished"])
def test_status_json_keeps_its_schema(harness, name):
    _, out, _ = harness("status", name, "--json")
    schema, ledger = (
        json.loads((SCHEMAS / f"{it}.schema.json").read_text()) for it in ("status", "ledger")
    )
    registry = Resource.from_contents(ledger) @ Registry()
    jsonschema.Draft202012Validator(schema, registry=registry).validate(json.loads(out))


def test_status_names_a_damaged_line_once_and_shows_the_rest(harness, root):
    path = root / "finished" / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[5] = b"\x00\x01 not json"
    path.write_bytes(b"\n".join(lines))
    code, out, err = harness("status", "finished")
    assert code == 3
    assert err.count(f"{path}:6") == 1
    assert "SUCCEEDED" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_run_gets_two_lines(harness, command):
    code, out, err = harness(command, "crashd")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("error[H101]: no run 'crashd'")
    assert "did you mean crashed?" in err.splitlines()[1]


@pytest.mark.parametrize("command", ["status", "report", "logs", "explain"])
def test_errors_are_json_with_json(harness, command):
    for arguments in (["no-such-thing"], ["--no-such-option"]):
        code, out, err = harness(command, *arguments, "--json")
        error = json.loads(out)
        assert (code, err) == (2, "")
        assert error["schema"] == 1
        assert error["error"]["code"] == "usage"
        assert error["error"]["message"]
        assert error["error"]["help"]


def test_logs_fold_and_filter(harness):
    _, out, _ = harness("logs", "crashed")
    lines = out.splitlines()
    assert lines[0] == "[r0-7] step=1"
    assert lines[-1] == "[r5] [rank5]: ValueError: boom"
    assert len(lines) == 213
    _, out, _ = harness("logs", "crashed", "--rank", "0-2,5", "--grep", "=21[12]$")
    assert out.splitlines() == ["[r0-2,5] step=211", "[r0-2,5] step=212"]
    _, out, _ = harness("logs", "crashed", "--lines", "2")
    assert out.splitlines() == lines[-2:]
    _, out, _ = harness("logs", "crashed", "--rank", "0,1", "--unfold", "-n", "1")
    assert out.splitlines() == ["[r0] step=212", "[r1] step=212"]
    _, out, _ = harness("logs", "crashed", "--lines", "1", "--json")
    assert json.loads(out) == {"attempt": 0, "ranks": [5], "text": "[rank5]: ValueError: boom"}
    assert harness("logs", "crashed", "--grep", "nowhere") == (
        0,
        "",
        "note: no line is like that\n",
    )


def test_logs_of_attempts(harness):
    assert harness("logs", "finished", "-n", "1")[1] == "[r0-7] step=202\n"
    assert "ValueError" in harness("logs", "finished", "--attempt", "0", "-n", "1")[1]
    _, out, err = harness("logs", "finished", "--attempt", "all", "-n", "1")
    assert len(out.splitlines()) == 2
    assert err.splitlines() == ["note: attempt 0", "note: attempt 1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "9"], "no log of rank 9"),
        (["--rank", "3-1"], "'3-1' is not a rank"),
        (["--rank", "a"], "'a' is not a rank"),
        (["--rank", "0-999999999"], "more than a million"),
        (["--attempt", "7"], "has no attempt 7"),
        (["--attempt", "x"], "give a number, or all"),
        (["--grep", "("], "not a regular expression"),
        (["--lines", "-1"], "-1"),
        (["-f", "--attempt", "0"], "exclude each other"),
    ],
)
def test_logs_refuse_in_one_line(harness, arguments, message):
    code, out, err = harness("logs", "crashed", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2


def test_logs_of_a_run_that_has_none(harness):
    code, _, err = harness("logs", "gathering")
    assert code == 2
    assert "no logs yet" in err


def test_logs_follow_goes_on_over_a_restart_until_the_end(root, scenes):
    """Lines written while following appear; the end of the run ends it."""
    scene = scenes.crashed()
    folder = scene.write(root, name="followed")
    scenes.write_logs(folder, 0, {0: ["old", "first"], 1: ["old", "first"]})
    with shell(root, "logs", "followed", "-f", "-n", "1") as process:
        assert process.stdout.readline() == "[r0-1] first\n"
        scenes.write_logs(root, 1, {0: ["again"], 1: ["again"]})
        (root / "logs" / "attempt1").rename(folder / "logs" / "attempt1")  # both at once
        assert process.stdout.readline() == "[r0-1] again\n"
        with (folder / "logs" / "attempt1" / "rank00000.log").open("a") as file:
            file.write("torn")
        scene.records = []
        scene.end("stopped", 0, "enough")
        from harness import codec

        with (folder / "journal.jsonl").open("ab") as file:
            file.write(codec.encode(scene.records[0]) + b"\n")
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, "[r0] torn\n")
    assert err == "note: attempt 1\n"


def test_logs_follow_ends_quietly_on_ctrl_c(root):
    with shell(root, "logs", "crashed", "-f", "-n", "1", start_new_session=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "")


def test_reader_that_goes_away_is_no_error(root):
    with shell(root, "logs", "crashed") as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(240)
    assert err == ""


def test_report_and_card(harness):
    code, out, _ = harness("report", "restarted")
    assert code == 0
    assert "rank 5" in out
    code, card, _ = harness("report", "restarted", "--card")
    assert code == 0
    assert "train.py:88" in card
    assert len(card.splitlines()) <= 12
    assert harness("report", "restarted", "--card", "1")[1] == card
    assert harness("report", "--card", "restarted")[1] == card
    assert json.loads(harness("report", "restarted", "--json")[1])["schema"] == 1
    assert json.loads(harness("report", "restarted", "--card", "--json")[1])["id"] == 1
    for arguments, message in (
        (["restarted", "--card", "7"], "no incident 7"),
        (["running", "--card"], "no incident"),
        (["restarted", "--card", "x"], "an incident is a number"),
    ):
        code, _, err = harness("report", *arguments)
        assert code == 2
        assert message in err


def test_explain_knows_its_pages(harness):
    code, out, _ = harness("explain")
    assert code == 0
    assert "exception" in out
    code, page, _ = harness("explain", "exception")
    assert code == 0
    assert "What it means" in page
    assert harness("explain", "Killed-By-Signal")[0] == 0
    known = json.loads(harness("explain", "--json")[1])["verdicts"]
    assert {"class": "exception", "family": "crash"} in known
    assert json.loads(harness("explain", "exception", "--json")[1])["text"] == page
    code, _, err = harness("explain", "excepton")
    assert code == 2
    assert "did you mean exception?" in err


def test_tui_refuses_without_a_terminal(root):
    with shell(root, "tui", "crashed", stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    assert err.splitlines()[0].startswith("error[H007]: harness tui needs a terminal")
    assert "\x1b" not in err


def test_address_where_nobody_answers(harness, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = harness("status", address)
    assert code not in (0, 3, 4, 70)
    assert address in err
    assert len(err.splitlines()) <= 2


def test_status_and_logs_start_light(root):
    code = (
        "import sys; from harness.cli.group import call; "
        "call(['status', 'finished']); call(['logs', 'finished']); "
        "heavy = {'torch', 'grpc', 'textual', 'rich', 'asyncio'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, stdout=subprocess.DEVNULL)


def test_where_chooses_ranks_as_the_screens_do(harness):
    _, out, _ = harness("status", "running", "--where", "dp=1 !tp=0", "--json")
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [5, 7]
    _, out, _ = harness("logs", "running", "--where", "rank=5-7 dp=1", "--rank", "0-5", "-n", "1")
    assert out == "[r5] [rank5]: ValueError: boom\n"
    _, out, _ = harness("stacks", "failed", "--where", "state=dead")
    assert out.startswith("rank 5 is at")
    code, _, err = harness("status", "running", "--where", "dpp=1")
    assert code == 2
    assert "did you mean pp?" in err
    code, _, err = harness("status", "running", "--where", "rank=99")
    assert (code, "no rank is there" in err) == (2, True)
    code, _, err = harness("status", "running", "--where", "loss")
    assert "for example rank=0-3; words in logs are found with harness logs --grep" in err


def test_what_cannot_be_shown_is_said(harness, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, says in (
        ("[tui]\nkeyz = 1\n", "unknown key 'tui.keyz'"),
        ("[tui.keys]\nnextbad = 'b'\n", "no such action"),
        ("[tui]\npeak-tflops = 'much'\n", "peak-tflops is a number above zero"),
        ("tui = 3\n", "tui"),
    ):
        (tmp_path / "harness.toml").write_text(text)
        code, _, err = harness("tui", "running")
        assert (code, says in err) == (2, True), err
    (tmp_path / "harness.toml").unlink()
    for arguments, says in (
        (("127.0.0.1:9", "--replay"), "--replay needs the run's journal"),
        (("running", "--allow-changes"), "--allow-changes is about browsers"),
    ):
        code, _, err = harness("tui", *arguments)
        assert (code, says in err) == (2, True)
