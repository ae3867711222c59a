"""As scripts for DeepSpeed are written: `--local_rank` is an argument, set by its launcher, or else
it is in the environment; a configuration is a file; `initialize` gives an engine, which here is one
of a few lines with the calls that such a script makes. Rank 1 fails at step 6 as it is told to."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--deepspeed_config", type=Path)
parser.add_argument("harm")
args = parser.parse_args()
if args.local_rank < 0:
    args.local_rank = int(os.environ["LOCAL_RANK"])
config = json.loads(args.deepspeed_config.read_text())


class Engine:
    def __init__(self, model: torch.nn.Module) -> None:
        dist.init_process_group("gloo")
        assert args.local_rank == dist.get_rank() == int(os.environ["LOCAL_RANK"])
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config["optimizer"]["lr"])

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch).square().mean()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save_checkpoint(self, folder: Path, tag: str, client_state: dict[str, int]) -> None:
        (folder / tag).mkdir(parents=True, exist_ok=True)
        if dist.get_rank() == 0:
            state = {"module": self.model.module.state_dict(), **client_state}
            torch.save(state, folder / tag / "mp_rank_00_model_states.pt")
        dist.barrier()
        (folder / "latest").write_text(tag)

    def load_checkpoint(self, folder: Path) -> int:
        if not (folder / "latest").exists():
            return 0
        tag = (folder / "latest").read_text()
        state = torch.load(folder / tag / "mp_rank_00_model_states.pt")
        self.model.module.load_state_dict(state["module"])
        return int(state["step"])


engine = Engine(torch.nn.Linear(8, 1))
first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
saved = Path("checkpoints")
for step in range(engine.load_checkpoint(saved), 12):
    if first and dist.get_rank() == 1 and step == 6:
        if args.harm == "crash":
            raise RuntimeError("a broken batch")
        time.sleep(3600)  # a lost mount
    loss = engine(torch.randn(config["train_micro_batch_size_per_gpu"], 8))
    engine.backward(loss)
    engine.step()
    if step == 3:
        engine.save_checkpoint(saved, f"global_step{step + 1}", {"step": step + 1})
print("trained to step 12")
dist.destroy_process_group()
