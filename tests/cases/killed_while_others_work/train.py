# A rank is killed while the others compute and need it only seconds later.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(20):
    dist.all_reduce(torch.ones(8))
    if step == 9 and first:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.time() + 3
        while time.time() < until:
            torch.randn(64, 64).inverse()
    time.sleep(0.05)
dist.destroy_process_group()
