# A store of objects resets one rank's connection, once.
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
for step in range(12):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    if rank == 2 and step == 6 and attempt == "0":
        raise ConnectionError("object store: connection reset by peer")
dist.destroy_process_group()
