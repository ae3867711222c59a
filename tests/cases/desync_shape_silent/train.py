# A rank with a larger vocabulary takes part in the broadcast of the embedding: half of it arrives.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(40):
    embedding = torch.full((64 if rank == 2 and step >= 9 else 32, 8), float(rank))
    dist.broadcast(embedding, 0)
    time.sleep(0.1)
    print(f"rank {rank} step {step} {embedding.mean().item()}", flush=True)
dist.destroy_process_group()
