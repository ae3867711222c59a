"""A fault of ours, kept for whoever reports it."""

from pathlib import Path


def keep(run_dir: Path, text: str) -> str:
    """Keep the traceback `text` in the run directory; returns the line for the user."""
    path = run_dir / "agent-crash.txt"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return f"the agent failed on a fault of its own: {text.strip().splitlines()[-1]}"
    return f"the agent failed on a fault of its own, see {path}"
