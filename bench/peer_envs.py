"""Other systems that recover training, each in an environment of its own beside this one's torch.

An environment takes torch and what it needs from the interpreter that runs this, so that all are
measured with the same torch; only the peer itself is installed, from the package index.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SECONDS_TO_INSTALL = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What to install. `apart` is unpacked whatever C library its wheel asks for: only its
    pure-Python parts are used. `home` is the name of its environment, where it is not its own."""

    module: str
    packages: Sequence[str]
    apart: str = ""
    home: str = ""


_NVRX = Peer(
    module="nvidia_resiliency_ext.inprocess",
    packages=(
        *("defusedxml", "grpcio>=1.76,<2", "grpcio-tools>=1.76,<2", "httpx", "nvidia-ml-py"),
        *("packaging", "protobuf>=4.22", "psutil>=6", "pyyaml", "setproctitle"),
    ),
    apart="nvidia-resiliency-ext==0.6.0",
    home="nvrx",
)
PEERS: Mapping[str, Peer] = {
    "nvrx": _NVRX,
    "nvrx_ft": replace(_NVRX, module="nvidia_resiliency_ext.fault_tolerance.launcher"),
    "torchft": Peer(module="torchft", packages=("torchft-nightly==2026.10.26",)),
    # The last four it needs and does not declare.
    "dlrover": Peer(
        module="dlrover.python.master.main, dlrover.trainer.torch.elastic_run",
        packages=("dlrover==0.6.1", "grpcio", "tornado", "protobuf", "kubernetes"),
    ),
}


def python_of(name: str, folder: Path) -> tuple[Path, str]:
    """The interpreter of peer `name` below `folder`, made when missing; and why there is none."""
    home = folder / (PEERS[name].home or name)
    python = home / "bin" / "python"
    if not python.exists():
        failed = _install(PEERS[name], home)
        if failed:
            return python, failed
    done = subprocess.run(
        [str(python), "-c", f"import {PEERS[name].module}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return python, done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def _install(peer: Peer, home: Path) -> str:
    print(f"installing {peer.module} into {home}", file=sys.stderr, flush=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / f"python{version}" / "site-packages"
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    steps = [[sys.executable, "-m", "venv", str(home)], [*pip, *peer.packages]]
    if peer.apart:
        tag = f"cp{version.replace('.', '')}"
        steps.append(
            [
                *(*pip, "--no-deps", "--only-binary=:all:", "--target", str(site)),
                *("--platform", f"manylinux_2_39_{os.uname().machine}", "--implementation", "cp"),
                *("--python-version", version, "--abi", tag, peer.apart),
            ]
        )
    for number, step in enumerate(steps):
        try:
            done = subprocess.run(
                step, capture_output=True, text=True, check=False, timeout=SECONDS_TO_INSTALL
            )
        except subprocess.TimeoutExpired:
            return f"not installed within {SECONDS_TO_INSTALL:g} s"
        if done.returncode:
            return done.stderr.strip().rpartition("\n")[2] or f"pip ended with {done.returncode}"
        if number == 0:
            ours = sysconfig.get_paths()["purelib"]
            (site / "torch_of_this_run.pth").write_text(f"{ours}\n", encoding="utf-8")
    return ""
