# The newest file lost its end in an earlier job.
import glob
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
p = max(glob.glob("model_*.pt"), key=lambda q: int(q[6:-3]))
s = torch.load(p)
w = s["w"]
for _step in range(s["step"], 12):
    g = torch.ones(1000)
    dist.all_reduce(g)
    w -= 0.01 * g
    time.sleep(0.02)
dist.destroy_process_group()
