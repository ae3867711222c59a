# Rank 0 tokenises first while the others wait, then it waits while they load what it made.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def tokenise(seconds):
    words, until = {}, time.time() + seconds
    while time.time() < until:
        for word in ("a", "few", "words", "more"):
            words[word] = words.get(word, 0) + 1


if rank > 0:
    dist.barrier()
tokenise(7 if rank == 0 else 2 * rank)
if rank == 0:
    dist.barrier()
dist.barrier()
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
