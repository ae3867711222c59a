# HSDP, two replicas of two shards: a rank is killed after its shards are reduced and before its
# replicas are. Each of the others waits in another group.
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
replicas, shards, rank = mesh["replicate"].get_group(), mesh["shard"].get_group(), dist.get_rank()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(20):
    whole, mine = torch.ones(64), torch.empty(32)
    dist.reduce_scatter_tensor(mine, whole, group=shards)
    if rank == 1 and step == 9 and first:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(mine, group=replicas)
    dist.all_gather_into_tensor(whole, mine, group=shards)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
