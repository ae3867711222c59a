"""What each system says of a fault, read from its output or from its report: that there is one,
and which rank."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

SAYS = {
    "torchrun": r"failed \(exitcode",
    "nvrx": r"affecting ranks",
    "torchft": r"got exception|should_commit=False",
    "nvrx_ft": r"Did not get|failed \(exitcode",
    "dlrover": r"The worker fails|failed \(exitcode",
}
"""What a system's own supervisor prints, not a rank that dies."""


class Output:
    """What a system has printed from one moment on; each look reads what is new."""

    def __init__(self, system: str, path: Path, since: int) -> None:
        self.says = re.compile(SAYS[system])
        self.path, self.at = path, since
        self.text = ""
        self.told = -1

    def tells(self) -> bool:
        """Whether the supervisor has told of a fault."""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            new = file.read()
        self.at += len(new)
        from_line = self.text.rfind("\n") + 1
        self.text += new.decode("utf-8", "replace")
        if self.told < 0 and (found := self.says.search(self.text, from_line)):
            self.told = self.text.rfind("\n", 0, found.start()) + 1
        return self.told >= 0

    def named(self, system: str, odd: int) -> tuple[str, bool]:
        """Whom a peer names, and whether it is the odd rank alone."""
        self.tells()
        text = self.text[self.told :] if self.told >= 0 else ""
        if system in ("torchrun", "nvrx_ft", "dlrover"):
            found = re.search(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
            if found is None:
                return "nobody", False
            return f"rank {found[2]}, exit code {found[1]}", int(found[2]) == odd
        if system == "nvrx":
            ranks = re.findall(r"affecting ranks \{([^}]*)\}", text.partition("\n")[0])
            words = [f"rank{'s' if ',' in each else ''} {each}" for each in ranks]
            return "; ".join(words) or "nobody", ranks == [str(odd)]
        return "nobody", False


def last_line(path: Path, most: int = 100) -> str:
    """The last line printed that says something; empty when there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = next((line.strip() for line in reversed(lines) if line.strip(" =-|\t")), "")
    return found if len(found) <= most else found[: most - 1] + "…"


def report(folder: Path, odd: int) -> tuple[float | None, str, bool]:
    """Harness's first incident: when (seconds since 1970), class and rank, whether it is right."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "report", "--json"),
            *("--runs-dir", str(folder / "runs"), "it"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    incidents: list[dict[str, Any]] = json.loads(done.stdout)["incidents"] if done.stdout else []
    if not incidents:
        return None, "nobody", False
    first = incidents[0]
    told = datetime.fromisoformat(first["detected"].replace("Z", "+00:00")).timestamp()
    ranks = ", ".join(map(str, first["first_failing"]))
    where = first.get("where") or {}
    line = f", line {where['line']}" if where.get("line") else ""
    stops = ", stopped on purpose" if first["action"] == "stop" else ""
    return (
        told,
        f"rank {ranks}: {first['class']}{line}{stops}",
        first["first_failing"] == [odd],
    )
