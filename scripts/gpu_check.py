"""Run the demo on the GPUs of this machine, one rank each: train, lose a rank, resume, compare."""

import subprocess
import sys

from harness.placement import count_gpus


def main() -> int:
    gpus = count_gpus(sys.executable)
    if gpus == 0:
        print("gpu-check: there is no GPU here that PyTorch can use; nothing was checked")
        return 0
    print(f"gpu-check: the demo on {gpus} GPU(s)", flush=True)
    layout = ["--dp", str(gpus), "--tp", "1", "--pp", "1", "--device", "cuda"]
    ranks = ["--nproc-per-node", str(gpus), "--kill-rank", str(gpus - 1)]
    demo = [sys.executable, "-m", "harness.chaos.demo", *ranks, "--", *layout]
    return subprocess.run(demo, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
