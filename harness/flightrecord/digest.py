"""What is kept of one dump: per group the calls in order, what is pending, who was sent to.

A digest is made of tuples, lists, strings, bytes and numbers, so that it can cross to another
process as it is.
"""

from typing import TypedDict

Where = tuple[str, int, str]


class Digest(TypedDict):
    version: str
    gloo: bool
    whole: bool
    cut: bool
    groups: list[tuple[str, str, str]]
    """Name, role, and the list of its ranks as the dump writes it, empty where it does not."""
    calls: list[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]]
    """Operation, input sizes, input dtypes. The indices below count from 1; 0 is a gap."""
    tracks: list[tuple[int, int, bytes, int, int]]
    """Group, first sequence number, indices of the calls (array "I"), enqueued, completed."""
    pending: list[tuple[int, int, int, int, int, bool, int, Where | None]]
    """Group, seq, call, created ns, peer within the group or -1, is a send, batch, user's line."""
    posted: list[tuple[int, int, bool, int]]
    """Group, peer within the group, is a send, how many; only with a whole record."""
    program: list[tuple[int, int]]
    last_where: Where | None
    newest_ns: int
    """When the last call was made."""
    skipped: int
    """Entries that make no sense."""
