# The pool that uploads checkpoints is joined when the interpreter ends; its task never does.
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pool = ThreadPoolExecutor(max_workers=1)
acknowledged = threading.Event()
for step in range(12):
    dist.all_reduce(torch.ones(16))
    time.sleep(0.05)
    if rank == 1 and step == 9:
        pool.submit(acknowledged.wait)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
print(f"rank {rank} done", flush=True)
