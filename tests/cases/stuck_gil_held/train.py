# An extension waits without letting the interpreter go.
import ctypes
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
library = ctypes.PyDLL(None)
for step in range(30):
    if rank == 0 and step == 9:
        library.sleep(3600)
    dist.all_reduce(torch.ones(8))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
