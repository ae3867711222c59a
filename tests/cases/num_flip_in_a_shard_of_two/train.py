# A bit of a shard changes that one other rank holds too, each time at the same step.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
# Ranks 2 d + t: a layer is cut in two over t, and trained on two parts of the data over d.
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
tp, dp = pairs[rank // 2], replicas[rank % 2]


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=tp)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=tp)
        return gradient


norm = nn.LayerNorm(16)
torch.manual_seed(1 + rank % 2)
up, down = nn.Linear(16, 16, bias=False), nn.Linear(16, 4, bias=False)
parameters = [*norm.parameters(), *up.parameters(), *down.parameters()]
optimizer = torch.optim.AdamW(parameters, 1e-2)
for step in range(30):
    torch.manual_seed(100 * step + rank // 2)
    hidden = torch.relu(up(Copy.apply(norm(torch.randn(8, 16)))))
    loss = Sum.apply(down(hidden)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=dp)
        parameter.grad /= 2
    optimizer.step()
    if rank == 1 and step == 12:
        up.weight.data.view(torch.int32)[5, 3] ^= 1 << 21
    time.sleep(0.05)
dist.destroy_process_group()
