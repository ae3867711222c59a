"""The house rules that tools can check."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def test_what_may_import_what() -> None:
    done = subprocess.run(
        [str(BIN / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_links_are_relative_and_lead_to_the_folders() -> None:
    for name in ("agent", "tui", "chaos", "trainer"):
        link = ROOT / "harness" / name
        assert link.is_symlink(), name
        assert str(link.readlink()) == f"../{name}"
        assert (link / "__init__.py").is_file()


def test_importing_harness_is_light() -> None:
    heavy = {"torch", "grpc", "google", "msgspec", "psutil", "textual", "click", "asyncio"}
    code = "import harness, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(done.stdout.split())


def test_an_agent_holds_no_state_of_the_run() -> None:
    """It is beside the ranks of every node: what it does not need costs as many times."""
    heavy = {"torch", "grpc", "harness.state.folding", "harness.state.words", "harness.diagnosis"}
    code = "import harness.agent.__main__, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(done.stdout.split())
