"""A real agent that watches checkpoint files, of ranks that are killed amid their saves."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import events, orders

SAVING = """
    import os, time, zipfile
    rank = os.environ["RANK"]
    os.makedirs("ck", exist_ok=True)
    def save(name):
        with zipfile.ZipFile(name, "w") as file:
            file.writestr("data", b"x" * 5000)
    save(f"ck/shard{rank}_step5.model")
    if rank == "0":
        save("ck/shard0_step10.pt")
        save("ck/shard0_step5.pt")
        with open("ck/last_step15.model", "wb") as file:  # a name that nobody else would look at
            file.write(open("ck/shard0_step5.model", "rb").read()[:3000])
    else:
        save("ck/shard1_step5.pt")
    open(f"done{rank}", "w").close()
    time.sleep(1000)
"""


def plain(folder: Path) -> dict[str, Any]:
    """Ranks that are programs like any other, and start in a moment."""
    script = str(folder / "train.py")
    return {"mode": "command", "script": sys.executable, "script_args": ("-S", script)}


def test_what_is_not_whole_is_told_before_the_workers_count_as_stopped(
    new_node: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ck"
    node = new_node(watch_checkpoints=(str(folder), str(tmp_path / "never")), **plain(tmp_path))
    node.launch(SAVING)
    node.wait_until(lambda: (tmp_path / "done0").exists() and (tmp_path / "done1").exists())
    node.stop()
    told = {(flaw.kind, os.path.basename(flaw.path)): flaw for flaw in flaws(node)}
    assert told.keys() == {("torn", "last_step15.model"), ("incomplete", "shard0_step10.pt")}
    bad = told["incomplete", "shard0_step10.pt"].aside
    assert bad == (str(folder / "shard0_step10.pt"),)
    torn = told["torn", "last_step15.model"].aside
    (folder / "last_step15.model").unlink()  # gone before the order comes
    node.order(orders.SetAside(attempt=0, paths=(*bad, *torn), suffix=".set-aside"))
    moved = node.until(events.FilesSetAside)
    assert (moved.moved, moved.failed) == ((f"{bad[0]}.set-aside",), ())
    assert node.shutdown() == 0
    said = node.err.read_text()
    assert "step 10 is there in part" in said
    assert "shard0_step10.pt is set aside as" in said
    watchers = [pid for pid in os.listdir("/proc") if pid.isdigit() and watches(pid, folder)]
    assert watchers == []


def flaws(node: Any) -> list[events.CheckpointFlaw]:
    found: list[events.CheckpointFlaw] = node.of(events.CheckpointFlaw)
    return found


def watches(pid: str, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_file_in_place_of_the_folder_is_told(
    new_node: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "ck").write_text("")
    node = new_node(watch_checkpoints=(str(tmp_path / "ck"),), **plain(tmp_path))
    node.launch("pass", ranks=1)
    node.finish(1)
    node.stop()
    assert node.shutdown() == 0
    assert f"harness: {tmp_path}/ck is not watched: it is a file, not a directory" in (
        node.err.read_text()
    )
