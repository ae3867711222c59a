"""Compare two checkpoints bit for bit: `python -m harness.trainer.compare DIR_A DIR_B`.

Needs neither the mesh that wrote them nor a process group: parameters and optimizer state have
the same names in every layout, and each tensor is put together from its shards.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import harness
from harness.trainer.config import ConfigError
from harness.trainer.flags import OneLineParser

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor that is not the same in both; max_abs is None where shapes or dtypes differ."""

    name: str
    why: str
    elements: int
    max_abs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    step: int
    tensors: int
    parameters: int
    differences: list[Difference]


def choose(root: Path, step: int | None) -> int:
    """Step of the checkpoint to read: the newest complete one, or the given one.

    Raises ConfigError when there is none.
    """
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    present = harness.Checkpointer(root).present()
    if step is not None:
        present = [found for found in present if found.step == step]
        if not present:
            raise ConfigError(f"{root}: no checkpoint of step {step}")
        if present[0].manifest is None:
            raise ConfigError(f"{present[0].path}: {present[0].reason}")
    for found in present:
        if found.manifest is not None:
            return found.step
    raise ConfigError(f"{root}: no complete checkpoint")


def read(root: Path, step: int) -> dict[str, torch.Tensor]:
    """All parameters and optimizer state of a checkpoint as whole tensors on the CPU.

    Raises ConfigError when they are not what was saved.
    """
    try:
        return harness.Checkpointer(root).tensors(step)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{root}: step {step}: {error}") from None


def _difference(name: str, a: torch.Tensor, b: torch.Tensor) -> Difference | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        why = f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
        return Difference(name=name, why=why, elements=max(a.numel(), b.numel()), max_abs=None)
    # As bytes: NaN equals the same NaN, and 0.0 is not -0.0.
    unequal = (a.reshape(-1, 1).view(torch.uint8) != b.reshape(-1, 1).view(torch.uint8)).any(1)
    count = int(unequal.sum())
    if not count:
        return None
    most = float((a.double() - b.double()).abs().max())
    why = f"{count} of {a.numel()} values differ, at most by {most:.3g}"
    return Difference(name=name, why=why, elements=count, max_abs=most)


def compare(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], *, step: int) -> Comparison:
    """Every tensor of both, by name, bit for bit."""
    differences = []
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            lone = a[name] if name in a else b[name]
            why = f"only in the {'first' if name in a else 'second'}"
            found: Difference | None = Difference(
                name=name, why=why, elements=lone.numel(), max_abs=None
            )
        else:
            found = _difference(name, a[name], b[name])
        if found is not None:
            differences.append(found)
    parameters = sum(t.numel() for name, t in a.items() if name.startswith("model."))
    return Comparison(
        step=step, tensors=len(a.keys() | b.keys()), parameters=parameters, differences=differences
    )


def _run(arguments: argparse.Namespace) -> Comparison:
    roots = [Path(arguments.a), Path(arguments.b)]
    steps = [choose(root, arguments.step) for root in roots]
    if steps[0] != steps[1]:
        raise ConfigError(
            f"newest complete checkpoints are of step {steps[0]} and step {steps[1]}; "
            "give --step for one that both have"
        )
    first, second = (read(root, steps[0]) for root in roots)
    return compare(first, second, step=steps[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 identical, 1 different, 2 nothing to compare (one line on stderr)."""
    parser = OneLineParser(prog="harness.trainer.compare", description=__doc__)
    parser.add_argument("a", metavar="DIR_A", help="checkpoint folder of the first run")
    parser.add_argument("b", metavar="DIR_B", help="checkpoint folder of the second run")
    parser.add_argument("--step", type=int, default=None, help="step to compare; default: newest")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    try:
        arguments = parser.parse_args(argv)
        result = _run(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    differences = result.differences
    if arguments.json:
        print(json.dumps({"schema": 1, "identical": not differences} | asdict(result)))
        return 1 if differences else 0
    if not differences:
        print(f"identical: {result.tensors} tensors, {result.parameters:,} parameters")
        return 0
    print(f"different: {len(differences)} of {result.tensors} tensors at step {result.step}")
    for one in differences[:SHOWN]:
        print(f"  {one.name}: {one.why}")
    if len(differences) > SHOWN:
        print(f"  and {len(differences) - SHOWN} more")
    return 1


if __name__ == "__main__":
    sys.exit(main())
