# Pairs are made from a list that one rank has the other way round.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [[0, 1], [2, 3]]
if rank == 3:
    pairs.reverse()
dist.all_reduce(torch.ones(4))
for pair in pairs:
    group = dist.new_group(pair)
    if rank in pair:
        dist.all_reduce(torch.ones(4), group=group)
print(f"rank {rank} has its groups", flush=True)
dist.barrier()
dist.destroy_process_group()
