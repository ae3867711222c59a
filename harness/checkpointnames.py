"""What the names of checkpoint files say: their step, their part of a set, whether they are done.

Conventions of training scripts and libraries, not rules: a name that says nothing gets None.
"""

import os
import re
from collections.abc import Container

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz", ".pkl", ".tar")
"""Of files that hold a model, or a part of one, or may do so."""

_ANYBODYS = (".bin", ".npz", ".pkl", ".tar")
"""Those of them that data sets and caches have as well."""

STEP_KEYS = ("step", "global_step", "iteration", "iter", "steps", "epoch")
"""Under which a checkpoint says its own step, the surest first."""

ASIDE_SUFFIX = ".set-aside"
"""Of files that Harness has taken out of the way."""

_STEP_WORDS = (
    r"(?:global[-_]?)?steps?",
    r"iter(?:ation)?s?|updates?",
    r"checkpoint|ckpt",
    r"epochs?",
)
_SAID = tuple(
    re.compile(rf"(?<![a-z])(?:{words})[-_=.]{{0,2}}(\d{{1,18}})(?!\d)", re.IGNORECASE)
    for words in _STEP_WORDS
)
_PART = re.compile(
    r"(?P<a>\d{1,6})[-_]of[-_](?P<of>\d{1,6})(?!\d)"
    r"|(?<![a-z])(?:rank|shards?|part|proc(?:ess)?|worker|node|gpu|stage|[mtpdez]p|zero)"
    r"[-_]*(?:rank)?[-_]*(?P<b>\d{1,6})(?!\d)"
    r"|__(?P<c>\d{1,6})_\d+(?=\.distcp$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,18}")
_UNFINISHED = re.compile(
    r"^\.|~$|(?:^|[-_.])(?:te?mp|temporary|part(?:ial)?|incomplete|unfinished)(?:$|[-_.])|"
    + re.escape(ASIDE_SUFFIX),
    re.IGNORECASE,
)
_MODELS = re.compile(
    r"model|optim|checkpoint|ckpt|snapshot|state|weight|param|scheduler|(?<![a-z])(?:adapter|lora"
    r"|ema|resume)(?![a-z])",
    re.IGNORECASE,
)
_SHELF = re.compile(r"checkpoint|ckpt|snapshot|weights", re.IGNORECASE)
"""What folders of such files are called, and those of data are not."""
_DATA = re.compile(
    r"(?<![a-z])(?:data(?:set)?s?|train|val(?:id(?:ation)?)?|test|eval|samples?|batch(?:es)?|tokens?"
    r"|cache|index|corpus|features?|embeddings?)(?![a-z])",
    re.IGNORECASE,
)
_MOMENT = re.compile(r"[-_.](?:te?mp|temporary|part(?:ial)?|incomplete|unfinished)$", re.IGNORECASE)
_POINTER = re.compile(r"^(?:latest|last)(?:[-_.]?(?:checkpoint\w*|ckpt|step|iter\w*))?(?:\.\w+)?$")


def is_data(name: str) -> bool:
    """Whether a file of this name holds tensors."""
    return name.endswith(SUFFIXES)


def is_models(path: str) -> bool:
    """Whether a file of this path is a model's or an optimizer's beyond doubt, by its name and its
    folder's: `.bin`, `.npz`, `.pkl` and `.tar` may hold anything, also in numbered parts."""
    if not is_data(path):
        return False
    folder, name = os.path.split(path)
    shelf = os.path.basename(folder)
    if not name.endswith(_ANYBODYS) or _MODELS.search(name) or _SHELF.search(shelf):
        return True
    numbered = said_step(name) is not None or said_step(shelf) is not None
    return numbered and _DATA.search(name) is None


def is_unfinished(name: str) -> bool:
    """Whether the name of a file or folder says that it does not count (yet)."""
    return bool(_UNFINISHED.search(name))


def finished(name: str) -> str:
    """What a file is called once it counts: step_5.pt of step_5.pt.tmp."""
    return _MOMENT.sub("", name)


def is_pointer(name: str) -> bool:
    """Whether a small file or link of this name tells which checkpoint is the newest."""
    return bool(_POINTER.match(name))


def said_step(name: str) -> int | None:
    """The step that `name` calls one: 20 of `step_20.pt`, of `epoch=3-step=20.ckpt`."""
    for pattern in _SAID:
        if found := pattern.findall(name):
            return int(found[-1])
    return None


def step_of(name: str) -> int | None:
    """The step of `name`: the one that it calls so, else its last number that is no part's."""
    said = said_step(name)
    if said is not None:
        return said
    numbers = _NUMBER.findall(os.path.splitext(_PART.sub("", name))[0])
    return int(numbers[-1]) if numbers else None


def part_of(name: str) -> tuple[int, int] | None:
    """Which part of a set the file is, and of how many (0: it does not say): (2, 4) of
    `model-00002-of-00004.safetensors`, (1, 0) of `shard1_step10.pt`."""
    found = _PART.search(name)
    if found is None:
        return None
    return int(found["a"] or found["b"] or found["c"]), int(found["of"] or 0)


def may_be_ranks(name: str, ranks: Container[int]) -> bool:
    """Whether the number in `name` may be that of the rank that wrote it, one of `ranks`, and not
    its step: `data2.bin` lies beside `data0.bin` and `data1.bin`, none is older than another."""
    return said_step(name) is None and step_of(name) in ranks


def series_of(name: str) -> str:
    """What files of one set, and of the sets of other steps, have in common."""
    return _NUMBER.sub("#", name)


def unit_of(root: str, path: str) -> tuple[str, int | None]:
    """What must come and go together with `path` below `root`: a folder of one step, or the file
    itself; and its step."""
    folders = os.path.relpath(path, root).split(os.sep)
    name = folders.pop()
    step = said_step(name)
    at = root
    for folder in folders:
        at = os.path.join(at, folder)
        numbered = said_step(folder) if said_step(folder) is not None else _bare(folder)
        if numbered is not None and step in (None, numbered):
            return at, numbered
    return path, step_of(name)


def _bare(folder: str) -> int | None:
    return int(folder) if folder.isdigit() and len(folder) <= 18 else None
