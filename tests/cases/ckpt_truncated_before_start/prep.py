from pathlib import Path

import torch

for step in (2, 4):
    torch.save({"step": step, "w": torch.zeros(1000)}, f"model_{step}.pt")
damaged = Path("model_4.pt")
damaged.write_bytes(damaged.read_bytes()[:-700])
