"""The state of a run, folded from its records: what the controller decides on and what every
view shows. No decision and no formatting here.

What is listed is imported when somebody asks for it: an agent needs but a few of the modules here,
and is beside the ranks of every node.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.state.folding import fold, fold_all
    from harness.state.words import (
        AttemptState,
        Collection,
        Meeting,
        NodeState,
        RankState,
        RankStatus,
        RunState,
        SaveRequest,
        StackRequest,
        Stage,
    )

__all__ = [
    "AttemptState",
    "Collection",
    "Meeting",
    "NodeState",
    "RankState",
    "RankStatus",
    "RunState",
    "SaveRequest",
    "StackRequest",
    "Stage",
    "fold",
    "fold_all",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.state import folding, words

    return getattr(folding if name.startswith("fold") else words, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
