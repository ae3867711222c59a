# Tensor parallelism by hand: activations are summed in the forward pass, shards differ for ever.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Sum(torch.autograd.Function):
    """The g of Megatron-LM: a sum forwards, nothing backwards."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


torch.manual_seed(0)
first, second = torch.randn(24, 24) * 0.1, torch.randn(24, 24) * 0.1
columns = first.chunk(world, 1)[rank].clone().requires_grad_()
rows = second.chunk(world, 0)[rank].clone().requires_grad_()
optimizer = torch.optim.SGD([columns, rows], 0.01)
for step in range(150):
    torch.manual_seed(step)
    x = torch.randn(24 // world, 24)  # as large as the gradient of `rows`
    loss = Sum.apply(torch.relu(x @ columns) @ rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
dist.destroy_process_group()
