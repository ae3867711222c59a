"""dataloader_worker_died: a worker process of a rank's DataLoader was killed or left."""

import re

from harness.diagnosis.endings import Ending

_TEXT = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)[^\n]*"
)


def explains(ending: Ending) -> str | None:
    """The sentence of the DataLoader; the one that names the signal where there are two."""
    if ending.kind != "raised":
        return None
    found: list[str] = [match.group(0) for match in _TEXT.finditer(ending.text)]
    named = [text for text in found if "killed by signal" in text]
    if not found:
        return None
    text = (named or found)[0].rstrip()
    if "Bus error" in text:
        text += " (a bus error there nearly always means that /dev/shm is full)"
    return text
