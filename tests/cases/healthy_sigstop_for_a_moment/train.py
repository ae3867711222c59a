# A rank is stopped for a moment and continued.
import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(40):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    if rank == 1 and step == 15:
        subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
dist.destroy_process_group()
