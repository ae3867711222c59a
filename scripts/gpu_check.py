"""What only a GPU can show: the demo with one rank each (train, lose a rank, resume, compare), and
digests: that they are those of the CPU, and how fast they are."""

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
    same = [sys.executable, "-m", "pytest", "-q", "tests/digest"]
    fast = [sys.executable, "bench/digest.py", "--device", "cuda"]
    return max(subprocess.run(part, check=False).returncode for part in (demo, same, fast))


if __name__ == "__main__":
    sys.exit(main())
