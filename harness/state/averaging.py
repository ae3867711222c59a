"""Programs that let every rank train on for a while and make one of them all now and then: local
SGD (Stich, 2019) after a start in step, DiLoCo (Douillard et al., 2023).

What goes apart there looks as if gradients were not reduced any more, until parameters are alike
again, which nothing but the program brings about.
"""

from harness.state.replicas import Look, Replicas, Suspicion, Track

_OF_THEM = ("gradients", "optimizer state")
"""What there is of parameters."""


def each_for_itself(known: Suspicion) -> bool:
    """Whether ranks have gone apart so that no majority is left. Parameters were alike before;
    gradients and state may be of such, though they never were alike themselves."""
    most = max(len(ranks & known.group) for ranks in known.at.classes)
    own = known.kind == "split" or (known.kind == "apart" and known.track.part.site in _OF_THEM)
    return own and 2 * most <= len(known.group)


def reconcile(replicas: Replicas, track: Track, look: Look) -> None:
    """Drop what `look` at a part of the parameters, just completed, shows to be meant so: they are
    alike, though they or their gradients were each rank's own before."""
    if track.part.site != "parameters" or not look.equal:
        return
    if any(each_for_itself(known) and _over(known, track, look) for known in replicas.suspicions):
        replicas.averaged.add(track.part.clock)
    for known in list(replicas.suspicions):
        if meant(replicas, known) or (_over(known, track, look) and each_for_itself(known)):
            known.track.wavered = True
            replicas.suspicions.remove(known)


def meant(replicas: Replicas, known: Suspicion) -> bool:
    """Whether it is gradients, or the optimizer's state, of parameters that the program makes one
    again now and then. Parameters that were not seen to come together are none of these."""
    part = known.track.part
    return part.site in _OF_THEM and part.clock in replicas.averaged and each_for_itself(known)


def _over(known: Suspicion, track: Track, look: Look) -> bool:
    """Whether the same parameters as those of `known`, or as its gradients are of, are alike now.
    Parameters are counted twice a step."""
    part = known.track.part
    if part.site == "parameters":
        return known.track is track and look.count > known.at.count
    same = (part.clock, part.name) == (track.part.clock, track.part.name)
    return same and part.site == "gradients" and look.count > 2 * known.at.count
