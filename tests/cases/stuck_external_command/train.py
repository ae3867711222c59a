# A command of the node (here one that never ends) is read to its end by rank 0.
import subprocess
import time

import torch
import torch.distributed as dist


def node_health():
    tool = ["sh", "-c", "echo checking; exec tail -f /dev/null"]
    return subprocess.run(tool, capture_output=True, check=True).stdout


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    if rank == 0 and step == 8:
        print(node_health(), flush=True)
    dist.all_reduce(torch.ones(8))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
