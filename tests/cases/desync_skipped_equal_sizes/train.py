# One rank leaves out one of two equal all_reduces: Gloo pairs the wrong ones and goes on.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    actor, critic = torch.ones(128) * rank, torch.ones(128)
    dist.all_reduce(actor)
    frozen = rank == 1 and step == 6
    if not frozen:
        dist.all_reduce(critic)
    time.sleep(0.05)
    print(f"rank {rank} step {step} {critic[0].item()}", flush=True)
dist.barrier()
dist.destroy_process_group()
