"""Events about a step that all ranks agree on, to stop there or to save: what a node answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStepTaken:
    """The node's ranks have been told that they may have to stop at `step`.

    `furthest` is the last step at which one of them asked whether to stop; `missed`: one had asked
    at `step` or a later one before it was told.
    """

    node_rank: int
    attempt: int
    step: int
    furthest: int
    missed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStepTaken:
    """The same of a step to save at. With `step` -1 they were only looked at: `furthest` -1 means
    that none of them has ever asked whether to save."""

    node_rank: int
    attempt: int
    step: int
    furthest: int
    missed: bool
