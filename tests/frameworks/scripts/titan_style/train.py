"""Device mesh, FSDP2, sharded checkpoints, all from a TOML file; rank 1 fails at step 6 as it is
told to by the configuration."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job.config_file", dest="config", type=Path, required=True)
    parser.add_argument("--training.steps", dest="steps", type=int, default=0)
    args = parser.parse_args()
    config: dict[str, Any] = tomllib.loads(args.config.read_text())
    steps = args.steps or config["training"]["steps"]
    folder = Path(config["checkpoint"]["folder"])
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    begin = max((int(p.name.removeprefix("step-")) for p in folder.glob("step-*")), default=0)
    if begin:
        load(model, optimizer, folder / f"step-{begin}")
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for step in range(begin, steps):
        if first and dist.get_rank() == 1 and step == 6:
            if config["experiment"]["harm"] == "crash":
                raise RuntimeError("a broken batch")
            time.sleep(3600)  # a lost mount
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == config["checkpoint"]["interval"]:
            save(model, optimizer, folder / f"step-{step + 1}")
    print(f"trained to step {steps}")
    dist.destroy_process_group()


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    parameters, states = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": states}, checkpoint_id=folder)


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    parameters, states = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=states)


if __name__ == "__main__":
    main()
