# Every rank waits for an index that nobody writes.
import pathlib
import time

import torch
import torch.distributed as dist


def wait_for_index(path):
    while not path.exists():
        time.sleep(0.5)
    return path.read_text()


dist.init_process_group("gloo")
rank = dist.get_rank()
shards = wait_for_index(pathlib.Path("index.json"))
for _ in range(10):
    dist.all_reduce(torch.ones(4))
print(rank, shards, flush=True)
dist.destroy_process_group()
