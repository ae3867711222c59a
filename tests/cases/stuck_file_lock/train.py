# A helper process of the rank keeps the lock of the cache it should have given back.
import fcntl
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    dist.all_reduce(torch.ones(8))
    if rank == 1 and step == 6:
        held = os.open("cache.lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        if os.fork() == 0:
            signal.pause()
        os.close(held)
        with open("cache.lock", "w") as cache:
            fcntl.flock(cache, fcntl.LOCK_EX)
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
