# In mid-run one rank meets a new shape and works on it for longer than the others may wait.
import datetime
import time

import torch
import torch.distributed as dist


def recompile(seconds):
    until, x = time.time() + seconds, torch.ones(64, 64)
    while time.time() < until:
        x = torch.tanh(x @ x)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
for step in range(20):
    if rank == 2 and step == 9:
        recompile(14)
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
