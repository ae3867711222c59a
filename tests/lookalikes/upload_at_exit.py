# The exit handler of rank 0 uploads for four seconds when all is done.
import atexit
import time

import torch
import torch.distributed as dist


def upload():
    for part in range(8):
        time.sleep(0.5)
        print(f"uploaded part {part + 1} of 8", flush=True)


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    atexit.register(upload)
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
