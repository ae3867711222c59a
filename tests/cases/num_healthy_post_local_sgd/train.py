# DDP's own hook: after 20 steps gradients stay on each rank, and parameters are averaged instead.
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
ddp = nn.parallel.DistributedDataParallel(net)
alone, _ = dist.new_subgroups(1)
ddp.register_comm_hook(hook.PostLocalSGDState(None, alone, 20), hook.post_localSGD_hook)
every_four = averagers.PeriodicModelAverager(period=4, warmup_steps=20)
opt = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), 0.01), every_four)
torch.manual_seed(dist.get_rank())
for _step in range(100):
    opt.zero_grad()
    ddp(torch.randn(8, 16)).square().mean().backward()
    opt.step()
    time.sleep(0.03)
dist.destroy_process_group()
