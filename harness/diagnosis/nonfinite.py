"""nonfinite: a rank stopped because a number was NaN or infinite."""

import re

from harness.diagnosis.endings import Ending

_NOT_A_NUMBER = re.compile(
    r"(?<![\w.-])(?:nans?|[+-]?inf(?:inity)?|non-?finite|not finite)\b", re.I
)


def explains(ending: Ending) -> str | None:
    """The program itself looked, and says so."""
    if ending.kind not in ("raised", "code") or not ending.message:
        return None
    return ending.says if _NOT_A_NUMBER.search(ending.message) else None
