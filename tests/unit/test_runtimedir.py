"""What a node that vanished has left is removed, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from harness import runtimedir

HOLD = """
import sys
from harness import runtimedir
with runtimedir.made() as folder:
    (folder / runtimedir.JOB).touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_only_what_nobody_holds_any_more_is_removed(tmp_path: Path) -> None:
    stranger = tmp_path / "harness-of_other"
    stranger.mkdir()
    named = tmp_path / "harness-experiments"
    named.mkdir()
    (named / runtimedir.JOB).touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert runtimedir.remove_abandoned(tmp_path) == []
        agent = runtimedir.hold(folder)
        holder.kill()
        holder.wait()
        assert runtimedir.remove_abandoned(tmp_path) == []
        os.close(agent)
        assert runtimedir.remove_abandoned(tmp_path) == [folder]
    assert sorted(tmp_path.iterdir()) == [named, stranger]
