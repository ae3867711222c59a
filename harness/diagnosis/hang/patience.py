"""How long a rank that others wait for may be away, from what it is seen to do.

Nothing but time tells a slow rank from a stuck one. These limits are what a place of this kind may
take without a sign of life; a rank that shows any is left alone. Too long is a late verdict, too
short a false one, and the second is worse.
"""

from dataclasses import dataclass

from harness.diagnosis.hang import loader, places
from harness.diagnosis.hang.exchange import Exchange
from harness.diagnosis.hang.scene import Scene
from harness.diagnosis.waits.stuck import waits_for_loader
from harness.events import EvidenceTaken

_IDLE_SHARE = 0.05
"""Of a core: below, a process does nothing but look at a clock now and then."""
_TICK_SECONDS = 0.011
"""The kernel counts CPU time in hundredths of a second."""
_IO_BYTES = 65_536
_STEADY = 3
"""A rank that has made so many rounds is past what happens only once."""
_BUSY_FACTOR = 3.0
"""A busy rank at a place that shows work, against an idle one there."""
_START_BUSY_FACTOR = 15.0
_START_NAP_FACTOR = 3.0
_TOLD_FACTOR = 10.0
"""A script that says what it does is believed."""
_PAUSE_FACTOR = 3.0
_QUICK_SHARE = 0.5
_UNTOLD_FACTOR = 1.2
"""A loader of which nothing shows that it works."""
_OTHERS_FACTOR = 2.5
"""A rank that waits for a loader, a thread of its own, a server: these may be late."""
_FORGIVEN_FACTOR = 2.0
_DEAD_FACTOR = 1.15
"""Nobody acknowledges what was sent: the kernel has given it several tries by then."""
_STILL_FACTOR = 1.3
"""Nothing is on its way over any connection, and all wait."""
_USUAL_FACTOR = 2.0
_MOST_STRETCHED = 8.0
"""By which a rank that gets no CPU is given longer, at most: a loop without end starves too."""
_LONGEST_STRETCHED = 30.0
"""Seconds that this makes of less, at most."""
_COMPUTING_FACTOR = 4.0
"""A rank that computes where no name says what: an evaluation in the script's own lines, a loop
without end. Nothing but time tells these apart."""
_OUTSIDE = (
    "wait_woken", "sk_wait", "skb_wait", "inet_csk_accept", "unix_stream", "poll_schedule",
    "do_select", "do_epoll", "ep_poll", "locks_lock", "fcntl_setlk", "rpc_wait", "nfs",
)  # fmt: skip
"""Functions of the kernel in which a process waits for somebody who need not be of this job."""
_SAME_NAP_NS = 400_000_000
"""Two looks that agree so well on when a rank wakes have seen one sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`seconds` from the last sign of life on; None: as long as it takes. `why` is for people.

    `asleep_seconds`: however long it gets, it cannot move before that, counted from the look.
    """

    seconds: float | None
    why: str
    asleep_seconds: float = 0.0
    since_ns: int = 0
    """It counts from then, when that is later."""


def for_rank(scene: Scene, rank: int) -> Patience:
    """For a rank that others wait for and that waits for nobody."""
    evidence = scene.seen.get(rank)
    if evidence is None:
        return Patience(seconds=scene.policy.stuck_patience, why="it does not answer")
    held = _held(evidence) or _works(evidence)
    if held is not None:
        return held
    base = _by_place(scene, rank, evidence)
    assert base.seconds is not None
    earlier = scene.attempt.forgiven.get(places.place_of(evidence), 0) / 1e9
    usual = scene.attempt.pace.usual_ns / 1e9
    seconds = max(
        stretched(base.seconds, evidence), _FORGIVEN_FACTOR * earlier, _USUAL_FACTOR * usual
    )
    asleep = asleep_seconds(scene, rank, evidence)
    wakes = asleep + (scene.look.ordered_ns - scene.still_since_ns(rank)) / 1e9
    if _naps_again(scene, asleep):
        late = _OTHERS_FACTOR * scene.policy.stuck_patience
        why = "it looks for something again and again, which may come late"
        return Patience(seconds=max(seconds, late), why=why, asleep_seconds=asleep)
    long = asleep and (seconds < wakes or _naps_still(scene, rank, asleep))
    if long and wakes <= _longest_nap(scene, rank):
        return Patience(
            seconds=wakes + scene.policy.stuck_patience,
            why=f"it is asleep, and wakes in {asleep:.0f} s",
        )
    return Patience(seconds=seconds, why=base.why, asleep_seconds=asleep)


def stretched(seconds: float, evidence: EvidenceTaken) -> float:
    """`seconds` of a CPU's time as those of a clock: what is ready to run and gets none is late and
    not stuck."""
    activity = evidence.activity
    if activity is None or activity.seconds <= 0:
        return seconds
    given = 1 - activity.starved_seconds / activity.seconds
    longer = seconds / max(given, 1 / _MOST_STRETCHED)
    return max(seconds, min(longer, _LONGEST_STRETCHED))


def _naps_still(scene: Scene, rank: int, asleep: float) -> bool:
    """Whether it sleeps the sleep that it slept at the look before: no loop of short ones."""
    stall = scene.attempt.stall
    if stall is None or stall.look.ranks != (rank,) or not stall.look.wakes_ns:
        return False
    return abs(scene.now_ns + int(asleep * 1e9) - stall.look.wakes_ns) < _SAME_NAP_NS


def _naps_again(scene: Scene, asleep: float) -> bool:
    """Whether it sleeps for a short time, and the rank that the look before was about has woken
    since and sleeps again: a loop that looks for something. Of one sleep nothing is known."""
    stall = scene.attempt.stall
    if not 0 < asleep < scene.policy.stuck_patience or stall is None or not stall.look.wakes_ns:
        return False
    (told,) = stall.look.ranks
    evidence = scene.seen.get(told)
    if evidence is None:
        return False
    wakes_ns = scene.now_ns + int(asleep_seconds(scene, told, evidence) * 1e9)
    return wakes_ns - stall.look.wakes_ns >= _SAME_NAP_NS


def _longest_nap(scene: Scene, rank: int) -> float:
    """Seconds without progress that a rank which wakes by itself may sleep through."""
    policy = scene.policy
    if _steady(scene, rank):
        return policy.work_patience
    return max(policy.work_patience, _START_NAP_FACTOR * policy.start_patience)


def for_exchange(scene: Scene, ranks: tuple[int, ...], seen: Exchange) -> Patience:
    """For an operation that all have called and that does not finish: data may be moving."""
    if seen.moved_bytes:
        return Patience(seconds=None, why=f"data is moving ({seen.moved_bytes:,} bytes)")
    patience = scene.policy.stuck_patience
    since_ns = max(seen.quiet_ns, *(scene.still_since_ns(rank) for rank in ranks))
    young = scene.now_ns < since_ns + int(_DEAD_FACTOR * patience * 1e9)
    seconds, why = _BUSY_FACTOR * patience, "nothing moves"
    if seen.dead or (seen.waiting and young):
        seconds, why = _DEAD_FACTOR * patience, "what was sent may still be answered"
    elif any(is_busy(scene.seen[rank]) for rank in ranks if rank in scene.seen):
        seconds, why = 3 * _BUSY_FACTOR * seconds, "data may still be moving"
    elif seen.known and not seen.waiting:
        seconds = _STILL_FACTOR * patience
    if not seen.dead:  # that is the kernel's word, which asks no rank
        starved = [scene.seen[rank] for rank in ranks if rank in scene.seen]
        seconds = max([seconds, *(stretched(seconds, each) for each in starved)])
    return Patience(seconds=seconds, why=why, since_ns=seen.quiet_ns)


def is_idle(evidence: EvidenceTaken) -> bool:
    """Whether the rank was seen to do nothing at all: no CPU, input, output, or children."""
    return _held(evidence) is None and _works(evidence) is None and not is_busy(evidence)


def is_busy(evidence: EvidenceTaken) -> bool:
    """Whether it used the CPU, for more than looking at a clock now and then."""
    activity = evidence.activity
    if activity is not None and activity.seconds > 0:
        return activity.cpu_seconds > max(_TICK_SECONDS, _IDLE_SHARE * activity.seconds)
    used = evidence.cpu_delta or 0.0
    return used > max(_TICK_SECONDS, _IDLE_SHARE * evidence.looked_apart)


def _held(evidence: EvidenceTaken) -> Patience | None:
    """By somebody outside: who looks at it, or whose requests it answers."""
    activity = evidence.activity
    traced = activity is not None and activity.traced_by
    stopped = evidence.process is not None and evidence.process.state == "t"
    if traced or stopped or places.is_debugged(evidence):
        return Patience(seconds=None, why="a debugger holds it")
    if places.serves(evidence):
        return Patience(seconds=None, why="it serves requests")
    return None


def _works(evidence: EvidenceTaken) -> Patience | None:
    """Signs of life between the two looks."""
    activity = evidence.activity
    if activity is None:
        return None
    if activity.log_bytes > 0:
        return Patience(seconds=None, why="it prints")
    if activity.io_bytes >= _IO_BYTES:
        return Patience(seconds=None, why="it reads or writes")
    if activity.children_cpu_seconds > _IDLE_SHARE * max(activity.seconds, 0.1):
        return Patience(seconds=None, why="its child processes work")
    return None


def _by_place(scene: Scene, rank: int, evidence: EvidenceTaken) -> Patience:
    policy, busy = scene.policy, is_busy(evidence)
    if evidence.process is not None and evidence.process.state == "T":
        return Patience(seconds=policy.stuck_patience, why="its process is stopped")
    if not _steady(scene, rank):
        factor = _START_BUSY_FACTOR if busy else 1.0
        return Patience(
            seconds=factor * policy.start_patience, why="first steps may take their time"
        )
    long = policy.work_patience * (_BUSY_FACTOR if busy else 1.0)
    if scene.rank(rank).phase in ("checkpoint", "eval"):
        why = f"it says that it is in phase {scene.rank(rank).phase}"
        return Patience(seconds=_TOLD_FACTOR * long, why=why)
    if _reads_pipe(evidence):
        return Patience(seconds=policy.stuck_patience, why="a pipe that nobody writes to is silent")
    if places.shows_work(evidence.frames, evidence.user_frame):
        return Patience(seconds=long, why="its place in the program shows work")
    if waits_for_loader(scene.waits.ranks[rank]):
        factor = _OTHERS_FACTOR if _may_load(evidence) else _UNTOLD_FACTOR
        return Patience(seconds=factor * policy.stuck_patience, why="a data loader may be late")
    if not evidence.frames:
        return Patience(seconds=long, why="its stack cannot be seen")
    if _said_since(scene, rank):
        return Patience(seconds=long, why="it has printed meanwhile")
    if _moved(scene, rank, evidence):
        return Patience(seconds=long, why="it moves about in the program")
    if places.waits_for_helper(evidence):
        seconds = _OTHERS_FACTOR * policy.stuck_patience
        return Patience(seconds=seconds, why="a thread or process that it waits for may be late")
    if _waits_outside(evidence):
        seconds = _OTHERS_FACTOR * policy.stuck_patience
        return Patience(seconds=seconds, why="a server or the holder of a lock may be late")
    if busy:
        return Patience(seconds=_COMPUTING_FACTOR * policy.stuck_patience, why="it computes")
    return Patience(seconds=_unmoved(scene, evidence), why="nothing shows that it works")


def _unmoved(scene: Scene, evidence: EvidenceTaken) -> float:
    """For a rank that does nothing at all, by what this attempt has shown: where no pause was long,
    a long one says more. In a library nobody knows what it waits for."""
    limit, longest = scene.policy.stuck_patience, scene.attempt.pace.longest_ns / 1e9
    at = evidence.user_frame
    if not longest or at is None or evidence.frames[0].file != at.file:
        return limit
    return min(limit, max(_QUICK_SHARE * limit, _PAUSE_FACTOR * longest))


def asleep_seconds(scene: Scene, rank: int, evidence: EvidenceTaken) -> float:
    """How long it cannot move, whatever happens."""
    activity = evidence.activity
    if activity is not None and activity.asleep_seconds is not None:
        return activity.asleep_seconds
    if not waits_for_loader(scene.waits.ranks[rank]):
        return 0.0
    children = loader.processes_of(evidence)
    return max((child.asleep_seconds or 0.0 for child in children), default=0.0)


def _waits_outside(evidence: EvidenceTaken) -> bool:
    """It sleeps until somebody sends something over a socket, or gives a lock of a file back."""
    process = evidence.process
    return process is not None and process.wchan.startswith(_OUTSIDE)


def _reads_pipe(evidence: EvidenceTaken) -> bool:
    """It sleeps on the read end of a pipe: the other end is on this machine, and would be seen."""
    process = evidence.process
    return process is not None and "pipe_read" in process.wchan


def _may_load(evidence: EvidenceTaken) -> bool:
    """Whether a process of its data loader may be waiting for data, or cannot be seen."""
    children = loader.processes_of(evidence)
    return not children or any(
        loader.waits_for_data(child)
        or places.shows_work(loader.own_frames(child), child.user_frame)
        for child in children
    )


def _moved(scene: Scene, rank: int, evidence: EvidenceTaken) -> bool:
    """Whether it was in another function at the look before."""
    stall = scene.attempt.stall
    if stall is None or stall.look.ranks != (rank,) or not stall.look.place:
        return False
    return stall.look.place != places.place_of(evidence)


def _said_since(scene: Scene, rank: int) -> bool:
    return scene.still_since_ns(rank) > scene.rank(rank).advanced_ns + 700_000_000


def _steady(scene: Scene, rank: int) -> bool:
    """Whether the rank is past its first rounds: optimizer steps where there are any, else the
    same operation again and again."""
    state = scene.rank(rank)
    if state.step >= _STEADY - 1:
        return True
    if scene.attempt.step >= _STEADY:
        return True
    evidence = scene.seen.get(rank)
    if evidence is None:
        return False
    counts: dict[object, int] = {}
    for entry in evidence.collectives:
        key = (entry.pg, entry.op, entry.sizes)
        counts[key] = counts.get(key, 0) + 1
    for op in evidence.p2p:
        way = (op.pg, op.direction, op.peer)
        counts[way] = max(counts.get(way, 0), op.number)
    return max(counts.values(), default=0) >= _STEADY
