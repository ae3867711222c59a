# Data comes through a named pipe whose writer has gone.
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
os.mkfifo(f"shard{rank}.fifo")
for step in range(30):
    sample = float(step)
    if rank == 1 and step == 7:
        with open(f"shard{rank}.fifo") as stream:
            sample = float(stream.readline())
    dist.all_reduce(torch.tensor([sample]))
    time.sleep(0.07)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
