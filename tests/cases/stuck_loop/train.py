# A loop that ends for every positive number meets a zero on one rank.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def halvings(number):
    count = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        count += 1
    return count


for step in range(30):
    count = halvings(0 if rank == 1 and step == 9 else step + 1)
    dist.all_reduce(torch.tensor([count]))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
