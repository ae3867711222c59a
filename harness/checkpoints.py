"""A checkpoint as the controller sees it, and as its manifest describes it: what is in it, whether
it counts, who vouches for it, and which older ones may go. Nothing here touches a file."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

SCHEMA = 1
State = Literal["saved", "certified"]
CERTIFIED: Final = "certified"
CERTIFIED_KEPT = 2
"""Certified checkpoints that retention never goes below: one may turn out to be the bad one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """One checkpoint as the ranks report it. It is a restore point once every rank has saved it."""

    step: int
    path: str
    saved_by: frozenset[int]
    seconds: float
    """Longest time any rank spent in the save."""
    attempt: int = 0
    """The attempt that saved it last."""
    whole_ns: int = 0
    """When the last rank had saved it, by the clock; 0: not all have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a checkpoint. `sha256` is in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A whole tensor, however it was cut into shards. `digest` is 64 bits in hex: the sum over all
    elements of their bits times a weight of their coordinates, so shards of any layout add up."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds; written last, so that there is none where the save was cut short.

    `rest` names, for each thing that every rank saves for itself (data loader, random numbers),
    the digest of what each rank saved, in the order of ranks: a single one where all are equal.
    `values` are rank 0's plain values, for people and programs to read. `saved_ns` is wall-clock
    nanoseconds. `state` is saved or certified; `vouched_by` says by whom.
    """

    step: int
    world_size: int
    saved_ns: int
    torch: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    rest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    state: State = "saved"
    vouched_by: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def certified(manifest: Manifest, by: str) -> Manifest:
    """The manifest once `by` (for example "replica digests") vouches for it."""
    vouched = tuple(dict.fromkeys([*manifest.vouched_by, by]))
    return replace(manifest, state=CERTIFIED, vouched_by=vouched)


def encode(manifest: Manifest) -> str:
    """The text of manifest.json. Its last field is the checksum of all the others."""
    content = {"schema": SCHEMA, **asdict(manifest)}
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1)


def decode(text: str) -> Manifest:
    """The manifest of this text. Raises ValueError with the reason in words."""
    try:
        content = json.loads(text)
        schema = content["schema"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("the manifest is damaged") from None
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, this version reads {SCHEMA}")
    try:
        checksum = content.pop("checksum")
        del content["schema"]
        manifest = Manifest(
            **{
                **content,
                "files": tuple(File(**file) for file in content["files"]),
                "tensors": {
                    name: Tensor(**{**entry, "shape": tuple(entry["shape"])})
                    for name, entry in content["tensors"].items()
                },
                "rest": {name: tuple(keys) for name, keys in content["rest"].items()},
                "vouched_by": tuple(content["vouched_by"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("the manifest is damaged") from None
    if checksum != _checksum({"schema": schema, **content}):
        raise ValueError("the manifest was altered (checksum)")
    return manifest


def attempt_name(agent_pid: int, attempt: int) -> str:
    """For whom a checkpoint is held: the ranks that an agent has started, which save there."""
    return f"attempt {attempt} under agent {agent_pid}"


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def objection(manifest: Manifest, *, step: int, sizes: Mapping[str, int]) -> str:
    """Why this manifest does not hold in the folder of `step` whose files have these sizes, in
    words; empty when it does. What the bytes say is for the checksums."""
    if manifest.step != step:
        return f"the manifest is of step {manifest.step}"
    for file in manifest.files:
        if file.name not in sizes:
            return f"{file.name} is missing"
        if sizes[file.name] != file.bytes:
            return f"{file.name} has {sizes[file.name]} bytes, not {file.bytes}"
    return ""


def expendable(
    complete: Sequence[Manifest],
    *,
    keep: int,
    keep_every: int = 0,
    held: Collection[int] = (),
    awaited: bool = False,
) -> list[int]:
    """Steps of those good checkpoints that may be deleted, oldest first.

    Kept are the newest `keep` (at least one), every step that `keep_every` divides (0: none), the
    newest two certified ones, and steps that are `held`. `awaited`: somebody certifies them, a
    while after they were saved; then the oldest one that is newer than all certified ones stays,
    too, or quick saves would leave none that is ever certified.
    """
    newest = sorted(complete, key=lambda manifest: manifest.step, reverse=True)
    kept = {manifest.step for manifest in newest[: max(1, keep)]}
    kept |= {m.step for m in newest if keep_every and m.step % keep_every == 0}
    vouched = [m.step for m in newest if m.state == CERTIFIED]
    kept |= {*vouched[:CERTIFIED_KEPT], *held}
    next_one = [m.step for m in newest if m.step > max(vouched, default=-1)][-1:]
    kept |= {*next_one} if awaited else set()
    return sorted(manifest.step for manifest in newest if manifest.step not in kept)
