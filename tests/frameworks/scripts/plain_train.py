"""As its user would write it for torchrun; rank 1 fails at step 6 as it is told to."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HARM = sys.argv[1]

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
begin = 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    model.module.load_state_dict(saved["model"])
    begin = saved["step"]
for step in range(begin, 12):
    if first and rank == 1 and step == 6:
        if HARM == "crash":
            raise RuntimeError("a broken batch")
        time.sleep(3600)  # a lost mount
    loss = model(torch.randn(8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3 and rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step + 1}, "saved.pt")
print("trained to step 12")
dist.destroy_process_group()
