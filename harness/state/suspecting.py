"""What digests side by side show beyond doubt, and when they are allowed to.

Declared replicas must be equal from the first look on. Of variables that nobody declares, equal
ones prove little: constants are equal, and so is what was copied once. So it takes that they
changed and stayed equal, and that the program sums something of their shape over just these ranks.
"""

import re
from dataclasses import replace

from harness.state.averaging import meant, reconcile
from harness.state.replicas import (
    COLUMNS,
    FLAT,
    LEARNT,
    LEFT,
    UNNAMED,
    Look,
    Replicas,
    Suspicion,
    Track,
    alike,
    behind,
    changed_at_rest,
    in_step,
    look_all,
    shifted,
)

_LEAST_APART = 3
"""Looks at which replicas must never have been alike, or alike on some ranks only."""
_LEAST_SPLIT = 2
_LEAST_STRAYED = 3
"""The same of ranks that came there on different ways: one may only be a step behind."""
_LEAST_LEARNT = 3
"""Looks in a row, with other values each, that make replicas of what nobody declares."""
_LEAST_ALIKE = 4
_BEFORE_FIRST_STEP = 2
"""Number of the look at parameters before the first step."""
_LEAST_GUESSED = 6
"""Looks before something is said of a variable by its shape alone."""
_NORM = re.compile(r"(?:^|[^a-z])(?:ln|norm|rms|layer_?norm|rms_?norm|gamma)(?:[^a-z]|$)", re.I)
_OWN = re.compile(r"expert|shard|lora|adapter", re.I)
"""Words for what each rank has a part of its own of."""


def suspect(replicas: Replicas, track: Track, look: Look) -> None:
    """Note what `look`, just completed, shows of its track; once a track."""
    reconcile(replicas, track, look)
    if track.wavered or any(known.track is track for known in replicas.suspicions):
        return
    if (
        track.part.site == "variables"
        and not look.equal
        and len(look.values) == len(look_all(look))
    ):
        replicas.differed.add((track.part.name, track.part.shape))
    found = _find(replicas, track, look)
    if found is not None and not meant(replicas, found):
        replicas.suspicions.append(found)


def _find(replicas: Replicas, track: Track, look: Look) -> Suspicion | None:
    part = track.part
    if COLUMNS in part.marks:
        if part.how in ("sharded", LEFT) or _seen_in_rows(replicas, track):
            return None
        return _split(track, look_all(look))
    if part.how == "sharded":
        return _became_alike(track, look)
    if part.how == LEFT:
        return _left_out(track, look)
    if part.site == "buffers" or "buffer" in track.marks:
        return _buffers(replicas, track, look)
    if part.how not in LEARNT:
        return _apart(track, look, look_all(look)) or _split(track, look_all(look))
    return (
        _learnt(replicas, track, look)
        or _along_axis(replicas, track, look)
        or _replicated(replicas, track, look)
    )


def _seen_in_rows(replicas: Replicas, track: Track) -> bool:
    """Whether the sums of rows of the same tensors tell of a difference themselves."""
    return any(
        other.wavered
        or other.split is not None
        or (other.last is not None and not other.last.equal)
        for other in replicas.tracks.values()
        if (other.part.site, other.members) == (track.part.site, track.members)
        and track.part.name == f"{COLUMNS} of {other.part.name}"
    )


def _apart(track: Track, look: Look, group: frozenset[int]) -> Suspicion | None:
    """Never alike."""
    if track.looks < _LEAST_APART or track.first is None or track.split is not None:
        return None
    if alike(track.first, group) or alike(look, group) or not in_step(track.first, look, group):
        return None
    return Suspicion(kind="apart", track=track, before=None, at=track.first, group=group)


def _split(track: Track, group: frozenset[int]) -> Suspicion | None:
    """Alike, and then not any more."""
    split = track.split
    if split is None or not alike(split.before, group) or alike(split.at, group):
        return None
    if not in_step(split.before, split.at, group):
        track.wavered = True
        return None
    if split.strayed and split.looks < _LEAST_STRAYED:
        return None
    same = shifted(track, group) if split.strayed else False
    if same or (same is None and not behind(split)):
        track.wavered = True
        return None
    # Gradients are new at each step: what was wrong with them is seen in one look only. A slice of
    # the state is looked at seldom, and a step may write over what memory has changed by itself.
    seldom = track.part.site in ("gradients", "optimizer state")
    soon = seldom or changed_at_rest(track, split.before, split.at, group)
    if split.looks < (1 if soon else _LEAST_SPLIT):
        return None
    return Suspicion(
        kind="split", track=track, before=split.before, at=split.at, group=group,
        held=split.held, moved=split.moved,
    )  # fmt: skip


def _learnt(replicas: Replicas, track: Track, look: Look) -> Suspicion | None:
    """What the program itself sums over a group, it means to have in common there. Not so what is
    itself summed: it differs from step to step until it is averaged."""
    if "averaged" in track.marks or not _same_tensor(replicas, track):
        return None
    for group in set(track.groups.values()):
        if not group <= look_all(look):
            continue
        least = 0 if _stepped_alike(replicas, track, group) else _LEAST_LEARNT
        if track.split is not None and track.split.moved >= least:
            if (
                _guessed(track)
                and not {"kept", "leaf", "parameter"} & track.marks
                and (track.split.moved < _LEAST_GUESSED)
            ):
                continue
            found = _split(track, group)
            if found is not None:
                return _with_witnesses(replicas, found)
        exact = not _guessed(track)
        sure = exact or (
            "kept" in track.marks
            and track.looks >= _LEAST_GUESSED
            and track.moved >= _LEAST_LEARNT
            and not _owned(replicas, track, group)
        )
        if sure and (found := _apart(track, look, group)) is not None:
            return found
        split = track.split
        if split is not None and _stepped_otherwise(replicas, track, group):
            return Suspicion(
                kind="stepped", track=track, before=track.first, at=split.at, group=group
            )
    return None


def _stepped_otherwise(replicas: Replicas, track: Track, group: frozenset[int]) -> bool:
    """Whether parameters were alike before the first step and never since, while their gradients
    always are: each rank makes something else of the same numbers."""
    part, split = track.part, track.split
    if part.site != "parameters" or split is None or split.looks < _LEAST_APART:
        return False
    if split.before.count != _BEFORE_FIRST_STEP or alike(split.at, group):
        return False
    return in_step(split.before, split.at, group) and any(
        other.looks >= _LEAST_APART
        and not other.unequal
        and group in other.groups.values()
        and (other.part.site, other.part.name, other.part.clock)
        == ("gradients", part.name, part.clock)
        for other in replicas.tracks.values()
    )


def _with_witnesses(replicas: Replicas, known: Suspicion) -> Suspicion:
    """`known` of all ranks that had the same bits as its group, step after step, though the program
    sums it over the group alone: what tensor parallelism leaves whole. They tell who is odd."""
    track, before = known.track, known.before
    if before is None:
        return known
    (held,) = (ranks for ranks in before.classes if known.group <= ranks)
    least = 0 if _stepped_alike(replicas, track, held) else _LEAST_LEARNT
    if known.moved < least or not in_step(before, known.at, held):
        return known
    return replace(known, group=held)


def _same_tensor(replicas: Replicas, track: Track) -> bool:
    """Whether what goes by this name is one tensor on all ranks. Parameters without a name are
    counted by their optimizer, and each rank may step some of its own (ZeRO by hand): then sums of
    their gradients are of different tensors, and never alike. Flat sums are known by their sizes
    alone."""
    part = track.part
    owner = part.name.rpartition(" of ")[2]
    if part.site == "variables" or not (owner.startswith(UNNAMED) or FLAT in track.marks):
        return True
    return any(
        other.equal
        for other in replicas.tracks.values()
        if (other.part.site, other.part.name, other.part.clock) == ("gradients", owner, part.clock)
    )


def _stepped_alike(replicas: Replicas, track: Track, group: frozenset[int]) -> bool:
    """Whether it is the optimizer's state of a parameter that was seen often enough to be the same
    over the group: then so is what steps it, which is looked at seldom."""
    part = track.part
    if part.site != "optimizer state" or track.split is None:
        return False
    owner = part.name.rpartition(" of ")[2]
    return any(
        (other.part.site, other.part.name, other.part.clock) == ("parameters", owner, part.clock)
        and (before := other.split.before if other.split else other.last) is not None
        and alike(before, group)
        and other.moved >= _LEAST_LEARNT
        for other in replicas.tracks.values()
    )


def _left_out(track: Track, look: Look) -> Suspicion | None:
    """Alike before the first step of all, and since that step different on every rank."""
    split = track.split
    if track.part.site != "parameters" or _OWN.search(track.part.name) or split is None:
        return None
    ranks = look_all(look)
    if split.looks < _LEAST_APART or split.before.count != _BEFORE_FIRST_STEP:
        return None
    if not split.before.equal or len(look.values) < len(ranks):
        return None
    if not in_step(split.before, split.at, ranks):
        return None
    return Suspicion(kind="left", track=track, before=split.before, at=split.at, group=ranks)


def _guessed(track: Track) -> bool:
    """Whether only its shape links it with what is summed."""
    return track.part.site == "variables" and "gradient" not in track.marks


def _owned(replicas: Replicas, track: Track, group: frozenset[int]) -> bool:
    """Whether another variable of this shape, equal over the group, explains the sums."""
    for other in replicas.tracks.values():
        if other is track or other.part.place != track.part.place or other.last is None:
            continue
        if other.part.shape == track.part.shape and other.moved and alike(other.last, group):
            return True
    return False


def _along_axis(replicas: Replicas, track: Track, look: Look) -> Suspicion | None:
    """Alike on all ranks at first, since then only within each group that it is summed over, while
    what is cut along the other axis has differed from the first look on."""
    first = track.first
    if first is None or not first.equal or look.equal or track.looks <= _LEAST_APART:
        return None
    groups = set(track.groups.values())
    if track.split is None or track.split.looks < _LEAST_APART:
        return None
    if len(groups) < 1 or not all(
        classed in groups or _closed(classed, groups) for classed in look.classes
    ):
        return None
    if track.split.at.classes != look.classes or len(look_all(look)) <= max(map(len, look.classes)):
        return None
    shared = "norm" in track.marks or _NORM.search(track.part.name) is not None
    scale = "ones" in track.marks and len(track.part.shape) == 1
    if not (shared or scale or "mixed" in track.marks):
        return None
    for other in replicas.tracks.values():
        cut = other.first is not None and other.first.classes == look.classes
        if other is not track and cut and other.part.place == track.part.place and other.moved:
            return Suspicion(
                kind="axis", track=track, before=first, at=track.split.at, group=look_all(look)
            )
    return None


def _closed(classed: frozenset[int], groups: set[frozenset[int]]) -> bool:
    """Whether no group that is known has members inside and outside."""
    return len(classed) > 1 and all(group <= classed or not group & classed for group in groups)


def _replicated(replicas: Replicas, track: Track, look: Look) -> Suspicion | None:
    """A variable named as each rank's own, that was different on all and is now the same."""
    name = (track.part.name, track.part.shape)
    if track.groups or track.looks < _LEAST_ALIKE or not look.equal or "mixed" not in track.marks:
        return None
    if name not in replicas.differed or not _OWN.search(track.part.name):
        return None
    if track.held < _LEAST_ALIKE and (track.split is None or track.split.looks < _LEAST_ALIKE):
        return None
    return Suspicion(kind="alike", track=track, before=track.first, at=look, group=look_all(look))


def _became_alike(track: Track, look: Look) -> Suspicion | None:
    """Shards that were all different, and change now as one: all zero or NaN they are alike too."""
    split = track.split
    if (
        split is None
        or split.looks < _LEAST_APART
        or len(split.before.values) < len(look_all(look))
        or split.at.values.keys() & look.values.keys()
    ):
        return None
    (most, *_) = sorted(look.classes, key=len, reverse=True)
    if len(most) < 2 or len(look_all(look)) < 2:
        return None
    return Suspicion(kind="alike", track=track, before=split.before, at=split.at, group=most)


def _buffers(replicas: Replicas, track: Track, look: Look) -> Suspicion | None:
    """Buffers that nobody keeps equal, of a model whose parameters are."""
    if look.equal or track.looks < _LEAST_APART:
        return None
    ranks = look_all(look)
    if track.part.how in LEARNT and not any(
        other.last is not None
        and ranks in other.groups.values()
        and alike(other.last, ranks)
        and "buffer" not in other.marks
        and other.part.site in ("parameters", "variables")
        for other in replicas.tracks.values()
    ):
        return None
    return Suspicion(kind="buffers", track=track, before=None, at=look, group=ranks)
