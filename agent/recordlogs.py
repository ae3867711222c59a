"""The logs that a rank keeps in shared memory, as the agent reads them. They outlive the rank."""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.collectives import Collective, GroupCreation, PointToPoint, Terms
from harness.worker import layout
from harness.worker.digestlog import DigestReader
from harness.worker.grouplog import GroupLogReader
from harness.worker.marklog import MarkReader
from harness.worker.p2plog import P2pLogReader
from harness.worker.sites import Call, SiteReader

MOST_OPERATIONS = 64
MOST_GROUPS = 256
MOST_GROUPS_OF_OTHERS = 64
"""Of those that the rank is not in: a number that means another group on other ranks is seen in any
of the last ones. In runs of thousands they would be most of what a look tells."""


class RecordLogs:
    """The logs of one worker, for as long as this object lives.

    Reads take milliseconds and never wait for the rank.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, layout.BYTES, prot=mmap.PROT_READ)
        self._groups = GroupLogReader(self._memory, layout.GROUPS_AT)
        self._p2p = P2pLogReader(self._memory, layout.P2P_AT)
        self.marks = MarkReader(self._memory, layout.MARKS_AT)
        self.digests = DigestReader(self._memory, layout.DIGESTS_AT)
        self.sites = SiteReader(self._memory, layout.SITES_AT)

    @property
    def exchanged(self) -> bool:
        """Whether it has sent or received anything yet; costs next to nothing."""
        return self._p2p.used

    def operations(self, most: int = MOST_OPERATIONS) -> tuple[PointToPoint, ...]:
        """The newest `most` point-to-point operations and all open ones, oldest first."""
        return self._p2p.read(self._groups.read(), min(most, MOST_OPERATIONS))

    def groups_made(self, since: int) -> int:
        """How many groups it has made so far, when it had made `since`; costs next to nothing."""
        return self._groups.made(since)

    def group(self, number: int) -> GroupCreation | None:
        """The group of that number in the group log."""
        return self._groups.one(number)

    def with_sites(self, entries: tuple[Collective, ...]) -> tuple[Collective, ...]:
        """`entries` of its flight record, each with the user's line where the rank noted it."""
        calls = self.sites.calls()
        if not calls:
            return entries
        names = {number: group.pg for number, group in self._groups.read().items()}
        return tuple(_with_call(entry, calls, names) for entry in entries)

    def last_exchange(self) -> Collective | None:
        """The all-to-all that it has called last, for where no flight record tells."""
        calls, groups = self.sites.calls(), self._groups.read()
        last = calls[-1] if calls else None
        if last is None or last.parts is None or last.group not in groups:
            return None
        group = groups[last.group]
        return Collective(
            record_id=0, pg=group.pg, pg_desc=group.pg_desc, seq_id=last.parts.seq + 1,
            op="all_to_all", sizes=(), dtypes=(), state="scheduled", retired=False,
            created_ns=last.begun_ns, site=last.site, terms=_terms(last),
        )  # fmt: skip

    def newest_operation(self) -> tuple[int, bytes]:
        """Changes whenever an operation has begun or ended."""
        return self._p2p.newest()

    def groups(self, most: int = MOST_GROUPS_OF_OTHERS) -> tuple[GroupCreation, ...]:
        """The creations of groups, oldest first: those that the rank belongs to or is still in, and
        others of the newest `most`."""
        made = list(self._groups.read().values())
        kept = [group for group in made if group.member or not group.ended_ns][-MOST_GROUPS:]
        newest = made[-most:] if most > 0 else []
        last = [group for group in newest if not group.member and group.ended_ns]
        return tuple(sorted(kept + last, key=lambda group: group.begun_ns))


def _with_call(entry: Collective, calls: Sequence[Call], names: Mapping[int, str]) -> Collective:
    """An entry is made within the call that it belongs to."""
    if entry.created_ns < calls[0].begun_ns:
        return entry
    for call in reversed(calls):
        if call.begun_ns > entry.created_ns:
            continue
        if call.ended_ns and call.ended_ns < entry.created_ns:
            break
        if names.get(call.group, entry.pg) == entry.pg:
            return replace(entry, site=call.site, terms=_terms(call))
    return entry


def _terms(call: Call) -> Terms | None:
    if call.parts is not None:
        return Terms(sent=call.parts.sent, received=call.parts.received)
    return Terms(root=call.root) if call.root >= 0 else None
