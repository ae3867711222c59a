# The workers of the data loader take five seconds to open their data.
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def open_data(worker):
    time.sleep(5)


dist.init_process_group("gloo")
samples = [torch.ones(8) for _ in range(80)]
loader = DataLoader(samples, batch_size=4, num_workers=1, worker_init_fn=open_data)
for epoch in range(2):
    for batch in loader:
        dist.all_reduce(batch)
        time.sleep(0.05)
    print(f"epoch {epoch} done", flush=True)
dist.destroy_process_group()
