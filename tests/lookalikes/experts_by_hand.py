# Tokens go to experts in parts that change from step to step; only the router is alike.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
router = nn.Linear(16, world)
torch.manual_seed(rank + 1)
expert = nn.Linear(16, 16)
optimizer = torch.optim.Adam([*router.parameters(), *expert.parameters()], 1e-3)
for _ in range(80):
    x = torch.randn(16, 16)
    chances = router(x).softmax(-1)
    chosen = chances.argmax(-1)
    sent = torch.bincount(chosen, minlength=world)
    room = torch.empty_like(sent)
    dist.all_to_all_single(room, sent)
    tokens = torch.empty(int(room.sum()), 16)
    dist.all_to_all_single(tokens, x[chosen.argsort()].contiguous(), room.tolist(), sent.tolist())
    y = expert(tokens)
    back = torch.empty(16, 16)
    dist.all_to_all_single(back, y.detach().contiguous(), sent.tolist(), room.tolist())
    routed = (chances.max(-1).values * back.square().mean(-1)).mean()
    loss = y.square().sum() / 16 + routed
    optimizer.zero_grad()
    loss.backward()
    for parameter in router.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    time.sleep(0.01)
dist.destroy_process_group()
