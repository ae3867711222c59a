# One rank opens a connection per request and closes none.
import resource
import socket
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
kept = []
for _step in range(100):
    if rank == 0:
        kept += [socket.socket() for _ in range(6)]  # a connection per request, none closed
    g = torch.ones(4)
    dist.all_reduce(g)
    time.sleep(0.1)
dist.destroy_process_group()
