"""Make the virtual environment of this checkout: `make_env.py FOLDER TORCH`.

Run by the interpreter that the environment is to have. PyTorch comes first and alone: as a mere
requirement of ours, pip would take the newest CUDA build, several gigabytes, everywhere. Where
this interpreter has a PyTorch that will do, that one is used and none is installed.
"""

import subprocess
import sys
import venv
from pathlib import Path

OLDEST_TORCH = (2, 11)


def own_torch() -> Path | None:
    """The folder from which this interpreter imports a PyTorch that will do."""
    try:
        import torch
    except ImportError:
        return None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return Path(torch.__file__).parent.parent if version >= OLDEST_TORCH else None


def main(folder: Path, torch: str) -> None:
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"error: Python 3.10 to 3.13 is needed, this is {found}\nhelp: make PYTHON=python3.12"
        )
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} with Python {sys.version.split()[0]}", flush=True)
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = own_torch()
    if packages is not None:
        print(f"using the PyTorch in {packages}", flush=True)
        major, minor = sys.version_info[:2]
        site = folder / "lib" / f"python{major}.{minor}" / "site-packages"
        (site / "torch-of-the-host.pth").write_text(f"{packages}\n", encoding="utf-8")
    else:
        print(f"installing {torch}", flush=True)
        subprocess.run([*pip, torch], check=True)
    print("installing harness and what it needs", flush=True)
    subprocess.run([*pip, "--editable", ".[dev]"], check=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd[3:])} failed\nhelp: its reason stands above")
