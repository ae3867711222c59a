# Only rank 0 keeps an average of the weights.
import copy
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
ddp = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.AdamW(ddp.parameters(), 1e-3)
ema = copy.deepcopy(net) if rank == 0 else None
torch.manual_seed(rank)
for _step in range(40):
    loss = ddp(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if ema is not None:
        with torch.no_grad():
            for a, b in zip(ema.parameters(), net.parameters(), strict=False):
                a.lerp_(b, 0.1)
    time.sleep(0.05)
dist.destroy_process_group()
