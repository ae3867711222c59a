import os

import torch

for rank, step in ((0, 9), (1, 6)):
    os.mkdir(f"node{rank}")
    torch.save({"step": step, "w": torch.zeros(8)}, f"node{rank}/last.pt")
