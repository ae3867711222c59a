# The worker process of a data loader is stopped from outside.
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index == 47 and dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.arange(16) + index


dist.init_process_group("gloo")
rank = dist.get_rank()
for step, batch in enumerate(DataLoader(Tokens(), batch_size=4, num_workers=2)):
    dist.all_reduce(batch)
    time.sleep(0.08)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
