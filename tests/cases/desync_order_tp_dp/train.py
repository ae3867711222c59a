# Gradients of two kinds of parameters are reduced in the order of a set: not the same everywhere.
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for step in range(30):
    order = ["tp", "dp"]
    if step == 10 and rank in (0, 3):
        order.reverse()
    for name in order:
        dist.all_reduce(torch.ones(100), group=mesh.get_group(name))
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
