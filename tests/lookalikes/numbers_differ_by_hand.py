# Programs that call their collectives themselves and hold on purpose what differs: own steps
# between averages, what compression left over, shards that begin as zeros, adapters on some ranks.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def local_steps():
    torch.manual_seed(0)
    net = nn.Linear(32, 8)
    torch.manual_seed(rank)
    for step in range(40):
        time.sleep(0.02)
        net.zero_grad()
        net(torch.randn(16, 32)).square().mean().backward()
        for parameter in net.parameters():
            parameter.data -= 0.05 * parameter.grad
        if step % 4 == 3:
            for parameter in net.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world


def compressed():
    torch.manual_seed(0)
    w, left = torch.randn(64), torch.zeros(64)
    torch.manual_seed(rank)
    for _ in range(40):
        time.sleep(0.02)
        x = torch.randn(64, 64)
        e = x @ w
        g = x.T @ e / 64 + left
        kept = g * (g.abs() > g.abs().median())
        left.copy_(g - kept)
        dist.all_reduce(kept)
        w -= 0.001 * kept / world


def cut_into_shards():
    torch.manual_seed(0)
    whole, ln = torch.randn(24, 24) * 0.1, torch.ones(24)
    part = 24 // world
    shard, bias = whole[:, rank * part : (rank + 1) * part].clone(), torch.zeros(part)
    for step in range(40):
        time.sleep(0.02)
        torch.manual_seed(step)
        x = torch.randn(4, 24)
        y = (x * ln) @ shard + bias
        out = y @ shard.T
        dist.all_reduce(out)
        shard -= 0.001 * x.T @ y
        bias -= 0.01 * y.mean(0)
        ln -= 0.001 * (x * out).mean(0)


def experts():
    torch.manual_seed(rank)
    expert, router = torch.randn(8, 16), torch.zeros(16)
    dist.broadcast(router, 0)
    for _ in range(40):
        time.sleep(0.02)
        g = torch.randn(16)
        dist.all_reduce(g)
        router -= 0.01 * g
        expert -= 0.01 * torch.randn(8, 16)


def adapters():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    extra = nn.Linear(16, 4) if rank == 0 else None
    own = [] if extra is None else list(extra.parameters())
    optimizer = torch.optim.SGD([*net.parameters(), *own], 0.01)
    torch.manual_seed(rank)
    for _ in range(40):
        time.sleep(0.02)
        x = torch.randn(8, 16)
        loss = net(x).square().mean() + (0 if extra is None else extra(x).square().mean())
        optimizer.zero_grad()
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


for program in (local_steps, compressed, cut_into_shards, experts, adapters):
    program()
    dist.barrier()
dist.destroy_process_group()
