# The kernel kills a data loader's process, as it does when memory is out.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if rank == 0 and i == 41:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is out
        return torch.ones(4)


loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2)
for _step, x in enumerate(loader):
    g = x.sum(0)
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
