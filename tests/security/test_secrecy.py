"""Where a run's token is: in job.json alone. Who else can read what a run writes: nobody."""

import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TOKEN = "tell-nobody-4711"

SCRIPT = f"""
import os
from pathlib import Path

found, pid, own = [], os.getpid(), os.getpid()
while pid > 1:
    stat = Path(f"/proc/{{pid}}/stat").read_text()
    line = Path(f"/proc/{{pid}}/cmdline").read_bytes()
    words = line + Path(f"/proc/{{pid}}/environ").read_bytes()
    found.append((line[-40:], {TOKEN.encode()!r} in (line if b"\\0run\\0" in line else words)))
    if b"\\0run\\0" in line:
        break
    pid = int(stat.rpartition(")")[2].split()[1])
print("LOOKED AT", len(found), "FOUND", [line for line, there in found if there])
raise SystemExit(3)
"""


@pytest.mark.slow
def test_the_token_is_in_one_file_and_nothing_is_for_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HARNESS_TOKEN": TOKEN,
    }
    old = os.umask(0o022)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "--run-name", "t", "--max-restarts", "0",
             "train.py"],
            cwd=tmp_path, env=environ, capture_output=True, check=False, timeout=240,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "harness", "bundle", "t", "-o", "t.tar.gz"],
            cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=240,
        )  # fmt: skip
    finally:
        os.umask(old)
    printed = done.stdout + done.stderr
    assert b"FOUND []" in printed, printed
    assert TOKEN.encode() not in printed
    run_dir = tmp_path / "runs" / "t"
    paths = [run_dir, *run_dir.rglob("*")]
    files = [path for path in paths if path.is_file()]
    assert [p.name for p in files if TOKEN.encode() in p.read_bytes()] == ["job.json"]
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    open_to_others = {
        str(path.relative_to(run_dir))
        for path in files
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    assert open_to_others == set()
    with tarfile.open(tmp_path / "t.tar.gz") as bundle:
        for member in bundle.getmembers():
            file = bundle.extractfile(member) if member.isfile() else None
            assert file is None or TOKEN.encode() not in file.read(), member.name
