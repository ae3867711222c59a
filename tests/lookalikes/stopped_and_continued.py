# A rank is stopped for two and a half seconds and goes on: a live migration, a snapshot.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
child = 0
for step in range(40):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.06)
    if rank == 2 and step == 14:
        child = os.fork()
        if child == 0:
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
if child:
    os.waitpid(child, 0)
dist.destroy_process_group()
