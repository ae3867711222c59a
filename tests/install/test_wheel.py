"""The built wheel beside a user's own trainer/, agent/ and chaos.py."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's content; built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: setuptools leaves build/ and *.egg-info where it builds.
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in map(os.fsdecode, filter(None, files)):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(source)], check=True
    )
    (wheel,) = folder.glob("train_harness-*.whl")
    target = folder / "site"
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_the_wheel_holds_one_import_name_and_all_its_files(installed: Path) -> None:
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"harness"}
    for name in ("agent", "tui", "chaos", "trainer", "worker", "controller", "cli", "sdk"):
        assert (installed / "harness" / name / "__init__.py").is_file()
        assert not (installed / "harness" / name).is_symlink()
    for name in (
        "py.typed",
        "wire/control.proto",
        "trainer/demo.toml",
        "tui/templates/app_index.html",
    ):
        assert (installed / "harness" / name).is_file()
    assert list((installed / "harness" / "schemas").glob("*.json"))


def test_a_user_s_own_modules_stay_the_user_s(installed: Path, tmp_path: Path) -> None:
    for name in ("agent", "trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("class Trainer:\n    mine = True\n")
    (tmp_path / "chaos.py").write_text("mine = True\n")
    (tmp_path / "train.py").write_text(
        "import agent, chaos, os\n"
        "from trainer import Trainer\n"
        "import harness\n"
        "assert chaos.mine and Trainer.mine\n"
        "print('rank', os.environ['RANK'], 'uses', harness.__file__)\n"
    )
    run = [sys.executable, "-c", "from harness.cli import main; main()", "run"]
    done = subprocess.run(
        [*run, "--no-zygote", "--nproc-per-node", "1", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"rank 0 uses {installed / 'harness' / '__init__.py'}\n"
