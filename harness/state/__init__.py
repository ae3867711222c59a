"""The state of a run, folded from its records: what the controller decides on and what every
view shows. No decision and no formatting here.
"""

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
