# The receiver waits for another tag than the one that was sent.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    tag = step if rank == 0 or step < 9 else step + 1
    chunk = torch.ones(2_000_000)
    if rank == 0:
        dist.send(chunk, 1, tag=tag)
    else:
        dist.recv(chunk, 0, tag=tag)
    dist.barrier()
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
