# The worker of a data loader hangs in one sample.
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        if index == 30 and dist.get_rank() == 1:
            threading.Event().wait()
        return torch.full((8,), float(index))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step, batch in enumerate(DataLoader(Images(), batch_size=4, num_workers=1)):
        dist.all_reduce(batch)
        time.sleep(0.08)
        print(f"rank {rank} step {step}", flush=True)
    dist.destroy_process_group()
