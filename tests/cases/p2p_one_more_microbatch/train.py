# The middle stage of a pipeline was configured for one micro-batch more than the first.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = torch.nn.Linear(32, 32)
for step in range(20):
    batches = 5 if rank == 1 and step == 6 else 4
    for _ in range(batches):
        activation = torch.randn(8, 32)
        if rank > 0:
            dist.recv(activation, rank - 1)
        activation = layer(activation).detach()
        if rank < 2:
            dist.send(activation, rank + 1)
    loss = torch.ones(1)
    dist.all_reduce(loss)
    time.sleep(0.05)
    print(f"stage {rank} step {step}", flush=True)
dist.destroy_process_group()
