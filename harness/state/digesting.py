"""Folding what is heard of digests."""

from harness import events as e
from harness import orders as o
from harness.state.replicas import Ref
from harness.state.suspecting import suspect
from harness.state.words import AttemptState

Event = e.DigestsRead | e.DigestsTold | e.LookedClosely | e.DoubtRaised | e.CheckpointCertified


def note(attempt: AttemptState, ref: Ref, event: Event) -> None:
    """What a node tells of its ranks' digests."""
    match event:
        case e.DigestsRead():
            _read(attempt, ref, event)
        case e.DigestsTold():
            _told(attempt, event)
        case e.LookedClosely():
            for known in attempt.replicas.suspicions:
                if (known.track.part.part, known.at.count) == (event.part, event.suspect):
                    known.close.heard(event, ref)
            for rerun in attempt.reruns:
                rerun.heard(event)
        case e.DoubtRaised():
            attempt.doubts.add(event.rank, event.doubt, ref)
        case e.CheckpointCertified():
            if not event.why:
                attempt.replicas.vouched.add(event.path)


def _read(attempt: AttemptState, ref: Ref, event: e.DigestsRead) -> None:
    replicas = attempt.replicas
    for part in event.parts:
        replicas.note_part(part, attempt.world_size)
    for row in event.rows:
        track = replicas.tracks.get(row.part)
        if track is None:
            continue
        look = track.add(row, ref, attempt.world_size)
        if look is not None:
            suspect(replicas, track, look)
            for rerun in attempt.reruns:
                rerun.take(track.part, look)


def _told(attempt: AttemptState, event: e.DigestsTold) -> None:
    for known in attempt.replicas.suspicions:
        if known.track.part.part != event.part or known.at.count != event.count:
            continue
        known.answered.add(event.node_rank)
        known.names = known.names or event.names
        for digests in event.ranks:
            for rank in digests.ranks:
                known.told[rank] = digests.values


def ordered(
    attempt: AttemptState,
    node_rank: int,
    order: o.TellDigests | o.LookClosely | o.CertifyCheckpoint,
    at_ns: int,
) -> None:
    """A node was asked for more of them, or to certify what they vouch for."""
    if isinstance(order, o.CertifyCheckpoint):
        attempt.replicas.certified.add(order.path)
        return
    for known in attempt.replicas.suspicions:
        if (known.track.part.part, known.at.count) != (order.part, order.count):
            continue
        if isinstance(order, o.LookClosely):
            known.close.ordered(order, at_ns)
        else:
            known.asked.add(node_rank)
            known.asked_ns = known.asked_ns or at_ns
