# A read in a pool of threads fails; its result raises in the loop.
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pool = ThreadPoolExecutor(2)


def read(step):
    if rank == 1 and step == 8:
        raise FileNotFoundError(2, "No such file or directory", "shard-0008.bin")
    return torch.ones(8)


for step in range(16):
    g = pool.submit(read, step).result()
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
