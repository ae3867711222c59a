# Rank 0 writes 200 MB in small pieces, as a throttled network disk takes them.
import time

import torch
import torch.distributed as dist


def write_slowly(path, pieces):
    with open(path, "wb") as file:
        for _ in range(pieces):
            file.write(bytes(4 << 20))
            file.flush()
            time.sleep(0.1)


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(25):
    dist.all_reduce(torch.ones(100))
    time.sleep(0.05)
    if rank == 0 and step == 12:
        write_slowly("export.bin", 50)
dist.destroy_process_group()
