# Ring attention by hand: at one step a rank passes its keys on once less than the others.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(30):
    keys = torch.randn(16, 16)
    for _hop in range(world - 1 - (rank == 2 and step == 12)):
        came = torch.empty_like(keys)
        to = dist.P2POp(dist.isend, keys, (rank + 1) % world)
        from_ = dist.P2POp(dist.irecv, came, (rank - 1) % world)
        for work in dist.batch_isend_irecv([to, from_]):
            work.wait()
        keys = came
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    time.sleep(0.03)
dist.destroy_process_group()
