# Expert parallel: the rank of the fullest expert is killed between the two all-to-alls of a layer.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(20):
    counts = torch.tensor([1 + (rank + expert + step) % 3 for expert in range(world)])
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    tokens = torch.full((int(counts.sum()), 8), float(rank))
    got = torch.empty(int(coming.sum()), 8)
    dist.all_to_all_single(got, tokens, coming.tolist(), counts.tolist())
    if rank == 2 and step == 9 and first:
        os.kill(os.getpid(), signal.SIGKILL)
    home = torch.empty_like(tokens)
    dist.all_to_all_single(home, got * 2, counts.tolist(), coming.tolist())
    assert torch.equal(home, tokens * 2)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
