"""As its user would write it for Accelerate; rank 1 fails at step 6 as it is told to."""

import os
import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

HARM = sys.argv[1]

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
begin = 0
if os.path.exists("saved/step"):
    accelerator.load_state("saved/state")
    with open("saved/step") as file:
        begin = int(file.read())
for step, (x, y) in enumerate(data):
    if step < begin:
        continue
    if first and accelerator.process_index == 1 and step == 6:
        if HARM == "crash":
            raise RuntimeError("a broken batch")
        time.sleep(3600)  # a lost mount
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        accelerator.save_state("saved/state")
        if accelerator.is_main_process:
            with open("saved/step", "w") as file:
                file.write(str(step + 1))
    if step == 11:
        break
print(f"trained to step {step + 1}")
accelerator.end_training()
