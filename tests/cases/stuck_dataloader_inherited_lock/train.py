# A worker forked while a thread of its rank held a lock that the data set also takes.
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()
lock, held = threading.Lock(), threading.Event()


class Cached(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        with lock:
            return torch.ones(4) * index


if rank == 1:
    threading.Thread(target=lambda: (lock.acquire(), held.set(), time.sleep(3))).start()
    held.wait()
for batch in DataLoader(Cached(), batch_size=4, num_workers=1):
    dist.all_reduce(batch)
    print(f"rank {rank} {batch[0, 0].item()}", flush=True)
dist.destroy_process_group()
