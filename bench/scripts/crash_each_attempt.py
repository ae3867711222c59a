"""Every attempt loses one rank at another step, until attempt `argv[1]`, which finishes."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

LAST = int(sys.argv[1])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
weight = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    weight.grad = torch.ones(8)
    dist.all_reduce(weight.grad)
    optimizer.step()
    if step == 0 and rank == 0:
        print(f"attempt {attempt} first step at {time.time():.3f}", flush=True)
    if attempt < LAST and step == 1 + attempt % 3 and rank == attempt % world:
        print(f"attempt {attempt} dies at {time.time():.3f}", flush=True)
        if attempt % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
dist.destroy_process_group()
if rank == 0:
    print(f"finished in attempt {attempt}", flush=True)
