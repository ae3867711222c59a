"""Booking the time of ranks as their records come, each in constant time.

Time is booked when something shows what it went into: a step that is complete, a phase that ends,
a save that is told. What a rank does now stays open, so that an incident can still claim it from
its onset on.
"""

from harness import events as e
from harness.incidents import Incident
from harness.sightings import Pulse
from harness.state.books import Books
from harness.state.words import AttemptState, RankState

_PHASES = {"checkpoint": "checkpoint", "load": "load"}


def part_of(attempt: AttemptState, rank: RankState) -> str:
    """What the time of `rank` goes into now."""
    books = rank.books
    if not books.signed:
        return "start"
    if books.over:
        return "stop"
    told = _PHASES.get(rank.phase)
    if told is not None:
        return told
    if not books.at_work:
        return "init"
    step = max(rank.step, attempt.resumed_step or 0)
    return "recompute" if step < attempt.moments.furthest else "useful"


def open_attempt(attempt: AttemptState, before: AttemptState | None) -> None:
    """The books of a fresh attempt."""
    if before is not None:
        furthest = before.step if tells_progress(before) else 0
        attempt.moments.furthest = max(before.moments.furthest, furthest)
    for rank in attempt.ranks.values():
        rank.books.until_ns = attempt.started_ns


def tells_progress(attempt: AttemptState) -> bool:
    """Whether the script itself names its steps, so that they mean the same in every attempt."""
    return any(
        rank.total_steps > 0 or rank.loss is not None or not rank.loss_finite
        for rank in attempt.ranks.values()
    )


def sign(attempt: AttemptState, rank: RankState, at_ns: int) -> None:
    """The first sign of life of `rank`."""
    _book(attempt, rank.books, "start", at_ns)
    rank.books.signed = True
    attempt.moments.signed_ns = max(attempt.moments.signed_ns, at_ns)


def pulse(attempt: AttemptState, rank: RankState, news: Pulse, at_ns: int) -> None:
    """`news` of `rank`, before it is taken over into its state."""
    books = rank.books
    made = news.step - rank.step
    if (
        made > 0
        and books.steps
        and not (books.first or books.waits_ns or books.late)
        and attempt.moments.new_step_ns
        and rank.step >= attempt.moments.furthest
        and news.phase == rank.phase == "step"
    ):
        # What nearly all news are, thousands of times a second in a large run.
        until_ns = news.step_ns
        if not 0 < until_ns <= at_ns:
            until_ns = at_ns
        spent = until_ns - books.until_ns
        books.steps += made
        if spent > 0:
            books.until_ns = until_ns
            books.useful += spent
            attempt.moments.useful_ns += spent
        return
    if not books.signed:
        if not news.heartbeat_ns and not news.step:
            return
        sign(attempt, rank, min(at_ns, news.step_ns or at_ns))
    stepped = news.step > rank.step and news.step != attempt.resumed_step
    stepped_ns = min(at_ns, news.step_ns or at_ns) if stepped else at_ns
    if books.waits_ns and (stepped or news.collectives != rank.collectives):
        _wait_is_over(attempt, rank, stepped_ns)
    if stepped:
        _steps(attempt, rank, news, stepped_ns)
    elif news.phase != rank.phase:
        change_phase(attempt, rank, news.phase, at_ns)
    elif not books.at_work and news.collectives > rank.collectives and rank.phase == "init":
        _book(attempt, books, "operations" if rank.collectives else "init", at_ns)


def change_phase(attempt: AttemptState, rank: RankState, phase: str, at_ns: int) -> None:
    """`rank` leaves its phase for `phase`, before that is taken over into its state."""
    if phase == rank.phase:
        return
    if not rank.books.signed:
        sign(attempt, rank, at_ns)
    if rank.books.waits_ns:
        _wait_is_over(attempt, rank, at_ns)
    _book(attempt, rank.books, part_of(attempt, rank), at_ns)
    # After a phase the one before it returns: from teardown that is mostly init.
    rank.books.over = phase == "teardown" or (rank.books.over and phase == "init")
    if phase in ("step", "eval") and not rank.books.at_work:
        _begin(attempt, rank.books, at_ns)


def saved(attempt: AttemptState, rank: RankState, seconds: float, at_ns: int) -> None:
    """Training stood still for `seconds`: as far as no phase has told so, just now or earlier."""
    books = rank.books
    if part_of(attempt, rank) == "checkpoint":
        _book(attempt, books, "checkpoint", at_ns)
    # A save in the background may be told after the phase of the next one.
    untold = int(seconds * 1e9) - books.saving_ns
    books.saving_ns = max(0, -untold)
    if untold > 0:
        taken = _tail(attempt, rank, "checkpoint", untold, at_ns)
        books.saving_ns = 0
        before = min(untold - taken, books.useful)
        books.useful -= before
        attempt.moments.useful_ns -= before
        books.checkpoint += before


def loaded(attempt: AttemptState, rank: RankState, seconds: float, at_ns: int) -> None:
    """A checkpoint was loaded within the last `seconds`."""
    if seconds > 0:
        attempt.moments.load_ns = max(attempt.moments.load_ns, int(seconds * 1e9))
        _tail(attempt, rank, "load", int(seconds * 1e9), at_ns)


def looked(attempt: AttemptState, look: e.StallLooked) -> None:
    """Ranks are seen to wait for others. Time of those that are waited for is no training either,
    unless they have said what they do."""
    if not look.ranks:
        return
    for rank in attempt.ranks.values():
        books = rank.books
        told = books.over or rank.phase in ("checkpoint", "eval", "load")
        if rank.status == "running" and not books.waits_ns and not told:
            books.waits_ns = max(rank.advanced_ns, books.until_ns)


def told_late(attempt: AttemptState, incident: Incident) -> None:
    """A straggler is known: from its onset on, its victims waste a share of their time."""
    verdict = incident.verdict
    share = min(1.0, verdict.wait_share)
    if verdict.family != "slow" or share <= 0:
        return
    since_ns = max(0, incident.detected_ns - verdict.onset_ns)
    for number in verdict.victims:
        rank = attempt.ranks.get(number)
        if rank is None or share <= rank.books.late:
            continue
        books = rank.books
        wasted = min(books.useful, int((share - books.late) * min(since_ns, books.useful)))
        books.useful -= wasted
        attempt.moments.useful_ns -= wasted
        books.straggler += wasted
        books.late = share


# --- inside ------------------------------------------------------------------------------------


def _book(attempt: AttemptState, books: Books, part: str, until_ns: int) -> int:
    """What lies open up to `until_ns` went into `part`; how much that is."""
    spent = until_ns - books.until_ns
    if spent <= 0:
        return 0
    books.until_ns = until_ns
    if part == "useful":
        wasted = int(spent * books.late) if books.late else 0
        books.useful += spent - wasted
        books.straggler += wasted
        attempt.moments.useful_ns += spent - wasted
    else:
        setattr(books, part, getattr(books, part) + spent)
        if part == "checkpoint":
            books.saving_ns += spent
    return spent


def _tail(attempt: AttemptState, rank: RankState, part: str, ns: int, at_ns: int) -> int:
    """The last `ns` before `at_ns`, as far as they lie open, went into `part`."""
    _book(attempt, rank.books, part_of(attempt, rank), at_ns - ns)
    return _book(attempt, rank.books, part, at_ns)


def _begin(attempt: AttemptState, books: Books, at_ns: int) -> None:
    books.at_work = True
    books.init += books.operations
    books.operations = 0
    if not attempt.moments.begun_ns:
        attempt.moments.begun_ns = at_ns


def _steps(attempt: AttemptState, rank: RankState, news: Pulse, at_ns: int) -> None:
    """Steps were made. Where several came at once, they are taken to have been equally long."""
    books, moments = rank.books, attempt.moments
    made = news.step - max(rank.step, attempt.resumed_step or 0)
    from_ns = min(books.until_ns, at_ns)
    tells = news.total_steps > 0 or news.loss is not None or not news.loss_finite
    again = min(news.step, moments.furthest) - (news.step - made) if tells and made > 0 else 0
    caught_up_ns = from_ns + (at_ns - from_ns) * again // made if again > 0 else from_ns
    if not books.at_work:
        _book(attempt, books, "init", at_ns)
        _begin(attempt, books, at_ns)
        caught_up_ns = at_ns
        books.first = max(0, made)
        quiet_ns = news.heartbeat_ns - rank.heartbeat_ns if rank.heartbeat_ns else 0
        books.first_most_ns = max(0, quiet_ns)
    else:
        if books.first:
            _tell_first_apart(attempt, rank, max(0, at_ns - from_ns) // max(1, made))
        part = part_of(attempt, rank)
        if part in ("useful", "recompute"):
            _book(attempt, books, "recompute", caught_up_ns if again > 0 else 0)
            part = "useful"
        _book(attempt, books, part, at_ns)
        books.steps += max(0, made)
    if moments.new_step_ns or (tells and news.step <= moments.furthest):
        return
    moments.recomputed_ns = max(caught_up_ns, moments.begun_ns)
    moments.new_step_ns = at_ns
    if again > 0 and made > again:
        moments.new_step_ns = caught_up_ns + (at_ns - caught_up_ns) // (made - again)


def _tell_first_apart(attempt: AttemptState, rank: RankState, each_ns: int) -> None:
    """The first steps are taken to have lasted as long as the next ones, `each_ns`; they had been
    booked with what came before them."""
    books, moments = rank.books, attempt.moments
    first, books.first = books.first, 0
    took_ns = min(first * each_ns, books.first_most_ns + each_ns, books.init)
    again = min(first, max(0, moments.furthest - (rank.step - first)))
    again_ns = took_ns * again // first
    books.init -= took_ns
    books.recompute += again_ns
    books.useful += took_ns - again_ns
    moments.useful_ns += took_ns - again_ns
    books.steps += first
    seen_ns = books.until_ns
    if moments.begun_ns == seen_ns:
        moments.begun_ns -= took_ns
    if moments.new_step_ns == seen_ns and first > again:
        moments.recomputed_ns = seen_ns - took_ns + again_ns
        moments.new_step_ns = moments.recomputed_ns + (took_ns - again_ns) // (first - again)


def _wait_is_over(attempt: AttemptState, rank: RankState, at_ns: int) -> None:
    books = rank.books
    _book(attempt, books, part_of(attempt, rank), books.waits_ns)
    _book(attempt, books, "stall", at_ns)
    books.waits_ns = 0
