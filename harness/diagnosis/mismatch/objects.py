"""Python objects that all ranks exchange: PyTorch gathers or broadcasts their sizes, then at once
their bytes, so whoever is at the bytes alone has left out the sizes, and the other way round."""

from harness.collectives import Collective
from harness.diagnosis.mismatch.meetings import Meeting
from harness.diagnosis.scene import Scene
from harness.diagnosis.waits.past import call_of

_EXCHANGES = frozenset({"all_gather", "allgather", "broadcast"})
"""all_gather_object, gather_object and broadcast_object_list begin with these."""


def skippers(scene: Scene, meeting: Meeting) -> list[int]:
    """Ranks that left out one half of such an exchange where the others called it from the same
    line of the program; empty where it is none, or where that cannot be said."""
    entries = meeting.entries
    sizes = {rank for rank, entry in entries.items() if _is(entry, "long")}
    data = {rank for rank, entry in entries.items() if _is(entry, "byte")}
    sites = {entry.site for entry in entries.values()}
    alike = len({call_of(entry).op for entry in entries.values()}) == 1 and len(sites) == 1
    if not alike or "" in sites or not sizes or not data or len(sizes | data) < len(entries):
        return []
    earlier = [_just_before(scene, rank, meeting) for rank in data]
    if None in earlier and meeting.seq > 1:
        return []
    begun = {entry is not None and _is(entry, "long") and entry.site in sites for entry in earlier}
    if len(begun) != 1:
        return []
    return sorted(sizes if begun.pop() else data)


def _is(entry: Collective, kind: str) -> bool:
    kinds = {each.lower() for each in entry.dtypes}
    return call_of(entry).op in _EXCHANGES and kinds == {kind}


def _just_before(scene: Scene, rank: int, here: Meeting) -> Collective | None:
    """What the rank has on record as its call on the group before that; None where there is
    none."""
    evidence = scene.attempt.ranks[rank].evidence
    if evidence is None:
        return None
    same = (e for e in evidence.collectives if e.pg == here.pg and e.seq_id == here.seq - 1)
    return next(same, None)
