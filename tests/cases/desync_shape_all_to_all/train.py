# A router that counted wrongly: a rank makes room for fewer tokens than a peer sends it.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(30):
    sent = [4, 4, 4]
    expected = [4, 4, 4]
    if rank == 2 and step == 8:
        expected = [0, 4, 4]
    out = torch.zeros(sum(expected), 16)
    dist.all_to_all_single(out, torch.randn(12, 16), expected, sent)
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
