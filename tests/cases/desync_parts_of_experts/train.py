# Tokens go to experts in parts of any size; one rank forgets the capacity.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
for step in range(30):
    tokens = torch.randint(1, 5, (world, world))  # from rank i to rank j
    sent, room = tokens[rank].tolist(), tokens[:, rank].tolist()
    if rank == 1 and step == 9:
        sent[0], sent[2] = sent[0] + 3, sent[2] + 2
    out = torch.empty(sum(room), 16)
    dist.all_to_all_single(out, torch.ones(sum(sent), 16), room, sent)
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
