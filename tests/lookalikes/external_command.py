# Rank 0 runs a command of six seconds: a sync to the object store.
import subprocess
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    if rank == 0 and step == 15:
        subprocess.run(["sleep", "6"], check=True)
dist.destroy_process_group()
