"""A third place that computes an optimizer's update: a process on the CPU, for what two replicas
have come to otherwise. A list of updates as JSON on stdin, a list of words on stdout."""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

from harness.digest.updating import Update, again, different

RIGHT, WRONG = "right", "wrong"
_CLOSE = 1e-4
"""Relative, that a GPU may come to otherwise: it fuses and rounds in other places."""


def told(update: Update, after: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """An update and what came of it, as JSON has it."""
    return {
        "kind": update.kind,
        "options": dict(update.options),
        "begin": update.begin,
        "end": update.end,
        "device": update.tensors["parameter"].device.type,
        "before": {name: _packed(tensor) for name, tensor in update.tensors.items()},
        "after": {name: _packed(tensor) for name, tensor in after.items()},
    }


def judge(raw: Mapping[str, Any]) -> str:
    """Whether `after` is what comes of `before`: right or wrong. Raises KeyError, TypeError or
    ValueError for what is no update."""
    update = Update(
        kind=str(raw["kind"]),
        options=raw["options"],
        tensors={name: _unpacked(one) for name, one in raw["before"].items()},
        begin=int(raw["begin"]),
        end=int(raw["end"]),
    )
    should = again(update)
    for name, one in raw["after"].items():
        found = _unpacked(one)
        if not different(should[name], found).any():
            continue
        left, right = should[name].double(), found.double()
        near = (left - right).abs() <= _CLOSE * torch.maximum(left.abs(), right.abs())
        if raw["device"] == "cpu" or not bool(near.all()):
            return WRONG
    return RIGHT


def _packed(tensor: torch.Tensor) -> list[Any]:
    raw = tensor.detach().cpu().reshape(-1).view(torch.uint8)
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, list(tensor.shape), base64.b64encode(bytes(raw.tolist())).decode()]


def _unpacked(one: list[Any]) -> torch.Tensor:
    name, shape, text = one
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of numbers")
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).reshape(shape)


def main() -> None:
    """Answers on stdout; an empty one for what cannot be judged."""
    torch.set_num_threads(1)
    words = []
    for raw in json.load(sys.stdin):
        try:
            words.append(judge(raw))
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError):
            words.append("")
    json.dump(words, sys.stdout)
