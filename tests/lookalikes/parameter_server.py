# Rank 0 only answers whoever comes; the others come at their own pace.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rounds = {1: 60, 2: 12}
weights, gradient = torch.zeros(32), torch.ones(32)
if rank == 0:
    for _ in range(sum(rounds.values())):
        sender = dist.recv(gradient)
        weights -= 0.01 * gradient
        dist.send(weights, sender)
else:
    for _ in range(rounds[rank]):
        time.sleep(0.08 if rank == 1 else 0.5)
        dist.send(gradient, 0)
        dist.recv(weights, 0)
dist.barrier()
dist.destroy_process_group()
