# Every rank writes its shard, at its own speed, and all meet afterwards.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def save_shard(path, seconds):
    until = time.time() + seconds
    while time.time() < until:
        torch.save(torch.ones(1 << 20), path)


for step in range(30):
    dist.all_reduce(torch.ones(100))
    time.sleep(0.05)
    if step % 10 == 9:
        save_shard(f"shard{rank}.pt", 1 + rank)
        dist.barrier()
dist.destroy_process_group()
