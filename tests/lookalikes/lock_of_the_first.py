# One builds a cache under a lock, the others are there already; it wakes as patience ends.
import fcntl
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with open("cache.lock", "w") as lock:
    for step in range(40):
        gradient = torch.ones(8)
        dist.all_reduce(gradient)
        time.sleep(0.02)
        if step == 20:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if rank == 0:
                time.sleep(4.0)
            fcntl.flock(lock, fcntl.LOCK_UN)
dist.destroy_process_group()
