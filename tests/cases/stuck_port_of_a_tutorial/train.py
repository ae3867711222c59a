# Lines from a tutorial that starts its processes by itself.
import os

import torch
import torch.distributed as dist

os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = "12355"
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
