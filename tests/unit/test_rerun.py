"""What replicas had come to otherwise is computed again after a rollback: that tells which of them
was wrong, and clears the other."""

from pathlib import Path

import pytest

from harness import events as e
from harness import orders as o
from harness.controller.strike_file import StrikeFile
from harness.membership import Strike
from harness.policy import Policy
from harness.sightings import DigestPart, DigestRow, TensorDigests
from harness.state.replicas import Look
from harness.state.rerun import pending
from harness.topology import runs_of
from tests.replay.world import World

PARAMETERS, GRADIENTS = 1, 2


def part(number: int, site: str) -> DigestPart:
    return DigestPart(
        part=number, site=site, how="ddp", name="a … z", tensors=40, ranks=(0, 1),
        members=runs_of((0, 1)), clock=0,
    )  # fmt: skip


class Training:
    """Two ranks, each on a host of its own; step n computes gradient 100 + n and parameters n."""

    def __init__(self) -> None:
        self.world = World(nnodes=2, nproc=1, policy=Policy(max_restarts=9)).start()

    def attempt(self, steps: range, begun: int = 0, wrong: dict[int, int] | None = None) -> None:
        """Its counts begin with 1 at step `begun` + 1; `wrong` are gradients of rank 1, by step."""
        parts = (part(PARAMETERS, "parameters"), part(GRADIENTS, "gradients"))
        self.say(e.DigestsRead(node_rank=0, rows=(), parts=parts))
        for step in steps:
            count = step - begun
            self.look(GRADIENTS, count, 100 + step, (wrong or {}).get(step))
            self.look(PARAMETERS, 2 * count, step - 1)
            if step not in (wrong or {}):
                self.look(PARAMETERS, 2 * count + 1, step)
            self.world.step(step)

    def look(self, number: int, count: int, value: int, odd: int | None = None) -> None:
        rows = tuple(
            DigestRow(
                part=number, count=count, value=value if rank == 0 or odd is None else odd,
                ranks=(rank,), step=count, at_ns=self.world.now_ns, progress=count,
            )
            for rank in range(2)
        )  # fmt: skip
        self.say(e.DigestsRead(node_rank=0, rows=rows))

    def say(self, event: e.Event) -> None:
        self.world.say(event, 0)

    def judged(self) -> None:
        """Rank 1's gradient of step 5 is another one; the run goes back."""
        self.attempt(range(1, 6), wrong={5: 999})
        self.gone_back(0)

    def gone_back(self, attempt: int) -> None:
        """What attempt `attempt` suspects is one tensor; the run goes back."""
        (known,) = self.world.state.attempts[attempt].replicas.suspicions
        told = tuple(
            TensorDigests(ranks=(rank,), values=(*range(39), 39 + rank)) for rank in range(2)
        )
        names = tuple(f"t{at}" for at in range(40))
        for node in range(2):
            self.world.say(
                e.DigestsTold(
                    node_rank=node, attempt=attempt, part=known.track.part.part,
                    count=known.at.count, names=names, ranks=told,
                ),
                node,
            )  # fmt: skip
        for _ in range(800):  # where in the tensor is waited for
            self.world.step(5)
            if len(self.world.state.attempts) > attempt + 1:
                break
            self.world.obey()

    def named(self) -> tuple[tuple[int, ...], str]:
        (incident,) = self.world.state.incidents
        return incident.verdict.first_failing, incident.verdict.confidence

    def struck(self) -> list[str]:
        return [strike.host for strike in self.world.state.strikes]


def test_the_rank_that_came_to_other_bits_is_named_and_the_other_cleared() -> None:
    training = Training()
    training.judged()
    assert training.named() == ((0, 1), "possible")
    assert training.struck() == ["host0", "host1"]
    training.attempt(range(4, 8), begun=3)
    assert training.named() == ((1,), "proven")
    (incident,) = training.world.state.incidents
    assert incident.verdict.cause.startswith("rank 1 has other bits in the reduced gradient of t39")
    assert incident.verdict.innocent == (0,)
    assert incident.verdict.reason == (
        "attempt 1 has computed it again from where all were equal, and has come to the same bits"
        " as rank 0 then, not to those of rank 1"
    )
    assert training.struck() == ["host1"]
    said = [text for text in training.world.state.notices if "is settled" in text]
    assert len(said) == 1
    assert said[0].startswith("harness: incident 1 is settled: it was rank 1, not rank 0; attempt")


def closely(training: Training) -> list[int]:
    orders = [r.event.order for r in training.world.records if isinstance(r.event, e.OrderGiven)]
    return [order.closely for order in orders if isinstance(order, o.StartWorkers)]


def test_the_attempt_that_computes_it_again_looks_at_every_step_until_past_the_fault() -> None:
    training = Training()
    training.judged()
    first, again = closely(training)[:2], closely(training)[2:]
    assert first == [0, 0]
    assert len(set(again)) == 1
    assert 5 <= again[0] <= 5 + 8
    training.attempt(range(1, 8))
    assert training.named() == ((1,), "proven")


def test_of_a_fault_that_comes_again_the_one_who_is_seen_then_made_the_first_too() -> None:
    """Between two looks the first time; the second time each step is looked at."""
    training = Training()
    training.attempt(range(1, 6))
    for count in (16, 17, 18):
        training.look(PARAMETERS, count, count, 900 + count)
        training.world.step(count // 2)
    training.gone_back(0)
    assert training.named() == ((0, 1), "possible")
    training.attempt(range(1, 8))
    for count in (16, 17):  # before step 8, and after it
        training.look(PARAMETERS, count, 7 if count == 16 else 8, 999)
        training.world.step(8)
    training.gone_back(1)
    first, second = training.world.state.incidents
    assert (second.verdict.first_failing, second.verdict.confidence) == ((1,), "proven")
    assert (first.verdict.first_failing, first.verdict.confidence) == ((1,), "likely")
    assert first.verdict.reason.endswith("that time it was rank 1 (incident 2)")
    assert training.struck() == ["host1", "host1"]


def test_a_slice_of_the_state_that_was_first_seen_when_it_was_wrong() -> None:
    """Parameters tell where it belongs, and the whole state is there the next time."""
    training = Training()
    state = DigestPart(
        part=3, site="optimizer state", how="ddp", name="exp_avg of a … exp_avg_sq of z",
        tensors=2, ranks=(0, 1), members=runs_of((0, 1)), clock=0,
    )  # fmt: skip
    training.attempt(range(1, 6))
    training.say(e.DigestsRead(node_rank=0, rows=(), parts=(state,)))
    for count in (5, 6, 7):
        training.look(3, count, 300 + count, 999)
        training.world.step(count)
    attempt = training.world.state.attempts[0]
    (known,) = attempt.replicas.suspicions
    assert (known.kind, known.at.count) == ("apart", 5)
    (rerun,) = pending(attempt.replicas.tracks.values(), [known], 0)
    parameters, slice_ = attempt.replicas.tracks[PARAMETERS].part, attempt.replicas.tracks[3].part
    rerun.take(parameters, again(2, 3))  # attempt 1 begins with what was there after step 3
    assert (rerun.shift, rerun.right) == (-3, None)
    rerun.take(slice_, again(2, 305))
    assert rerun.right == {0}


def again(count: int, value: int) -> Look:
    both = frozenset({0, 1})
    return Look(
        count=count, step=count, at_ns=0, ref=("agent:0", 1), values={value: both}, progress={}
    )


def test_digests_that_put_it_at_two_places_settle_nothing() -> None:
    training = Training()
    training.judged()
    (rerun,) = training.world.state.attempts[1].reruns
    parameters = training.world.state.attempts[0].replicas.tracks[PARAMETERS].part
    rerun.take(parameters, again(2, 3))
    assert rerun.shift == -3
    rerun.take(parameters, again(4, 3))
    assert rerun.void
    gradients = training.world.state.attempts[0].replicas.tracks[GRADIENTS].part
    rerun.take(gradients, again(2, 105))
    assert rerun.right is None


def test_an_attempt_that_resumes_at_the_step_itself_tells_as_well() -> None:
    training = Training()
    training.judged()
    training.attempt(range(5, 7), begun=4)
    assert training.named() == ((1,), "proven")


@pytest.mark.parametrize("kind", ["other bits", "not so far", "wrong again"])
def test_nothing_is_settled_by(kind: str) -> None:
    training = Training()
    training.judged()
    if kind == "other bits":  # what is not deterministic
        training.look(GRADIENTS, 1, 777)
        training.attempt(range(5, 9), begun=4, wrong={5: 555})
    elif kind == "not so far":
        training.attempt(range(3, 5), begun=2)
    else:
        training.attempt(range(5, 6), begun=4, wrong={5: 999})
    assert training.world.state.incidents[0].verdict.first_failing == (0, 1)
    assert training.struck()[:2] == ["host0", "host1"]


def test_an_attempt_that_fails_before_leaves_it_to_the_next() -> None:
    training = Training()
    training.judged()
    training.attempt(range(4, 5), begun=3)
    world = training.world
    world.exit(0, signal=9)
    world.judged()
    world.obey()
    assert len(world.state.attempts) == 3
    training.attempt(range(1, 7))
    assert world.state.incidents[0].verdict.first_failing == (1,)


def test_the_file_of_strikes_forgets_who_was_cleared(tmp_path: Path) -> None:
    file = StrikeFile(tmp_path, 86400.0, pytest.fail)
    at_ns = 2**62
    one, two, other = (
        Strike(host=host, run=run, incident=1, why="silent_data_corruption", at_ns=at_ns)
        for host, run in (("a", "r"), ("b", "r"), ("a", "earlier"))
    )
    file.add(other, one, two)
    file.settle("r", 1, [two])
    assert file.read() == (other, two)
    file.settle("r", 2, [])
    assert file.read() == (other, two)
