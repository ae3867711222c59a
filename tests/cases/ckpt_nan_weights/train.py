# A checkpoint with an infinite weight was saved by an earlier job.
import glob
import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
p = max(glob.glob("ck*.pt"), key=lambda q: int(q[2:-3]))
s = torch.load(p)
net = nn.Linear(16, 1)
net.load_state_dict(s["net"])
ddp = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(ddp.parameters(), 0.01)
for step in range(s["step"], 30):
    loss = ddp(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"rank {rank} step {step} loss {loss.item()}", flush=True)
    if not torch.isfinite(loss):
        sys.exit("loss is not finite")
dist.destroy_process_group()
