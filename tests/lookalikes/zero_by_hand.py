# ZeRO by hand: every rank steps some of the parameters, which have no names, and tells the others.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
whole = [torch.nn.Parameter(torch.randn(16, 16) * 0.1) for _ in range(2 * world)]
mine = whole[rank::world]
optimizer = torch.optim.Adam(mine, 1e-3)
torch.manual_seed(rank)
for _ in range(60):
    x = torch.randn(4, 16)
    for parameter in whole:
        x = torch.tanh(x @ parameter)
    x.square().mean().backward()
    for parameter in whole:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    for at, parameter in enumerate(whole):
        dist.broadcast(parameter.data, at % world)
        parameter.grad = None
    time.sleep(0.02)
dist.destroy_process_group()
