"""The one guest of this process: what it knows of its rank, and where it says so.

`current()` is None outside Harness and in processes that the rank has forked or spawned, so that
every caller may simply skip. No method raises.
"""

import mmap
import os
import threading
import time
from typing import Any

from harness.worker import armed, layout, p2p
from harness.worker.assignment import Assignment
from harness.worker.audits.auditor import Auditor, Means
from harness.worker.audits.losses import Losses
from harness.worker.digestlog import DigestWriter
from harness.worker.digests.witness import Witness
from harness.worker.inhand import InHand
from harness.worker.link import Link
from harness.worker.marklog import MarkWriter
from harness.worker.marks import Marker
from harness.worker.memoryfile import MemoryFile
from harness.worker.ownstack import Answering
from harness.worker.pulse import PulseWriter
from harness.worker.setup import Telling
from harness.worker.sites import SiteWriter

_BEAT_SECONDS = 0.25
_TURN = 1 << 20


class Guest:
    """State of the pulse page and the ways to change it."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.pid = os.getpid()
        self.link = Link(assignment.link)
        self._page = PulseWriter(assignment.pulse)
        command = (assignment.target, *assignment.arguments)
        self.setup = Telling(self.link.say, assignment.mode, command)
        self.recorder: p2p.Recorder | None = None
        self.sites: SiteWriter | None = None
        self.marker: Marker | None = None
        self.witness: Witness | None = None
        self.auditor: Auditor | None = None
        self.losses: Losses | None = None
        if assignment.audit_share > 0:
            step, bound = assignment.spike_step, assignment.spike_bound
            self.losses = Losses(self._doubt, (step, bound) if step >= 0 else None)
        self._map_logs(assignment.pulse)
        self.memory: MemoryFile | None = None
        if assignment.memory >= 0:
            os.set_inheritable(assignment.memory, False)
            self.memory = MemoryFile(assignment.memory)
        self.store = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        """Where the agent says that the rendezvous store is, before the script says otherwise."""
        self._in_hand = InHand(self.link)
        self._answering = Answering(assignment.link, self.link, self._told)
        os.close(assignment.pulse)
        self._lock = threading.RLock()  # re-entrant: a signal handler may report progress too
        self._told_steps = False
        self.step = 0
        self.phase = "init"
        self._step_ns = 0
        self._loss: float | None = None
        self._loss_finite = True
        self._tokens = 0
        self._total_steps = 0
        self._publish()

    def _map_logs(self, descriptor: int) -> None:
        """None of them where the agent has made no room for it."""
        if os.fstat(descriptor).st_size < layout.BYTES:
            return
        memory = mmap.mmap(descriptor, layout.BYTES)
        self.recorder = p2p.make(memory, layout.GROUPS_AT, layout.P2P_AT)
        self.sites = SiteWriter(memory, layout.SITES_AT)
        self.marker = Marker(MarkWriter(memory, layout.MARKS_AT), self.sites, self.recorder)
        if self.assignment.digests > 0 and self.assignment.world_size > 1:
            self.witness = Witness(
                DigestWriter(memory, layout.DIGESTS_AT),
                every=self.assignment.digests,
                share=self.assignment.digest_share,
                closely=self.assignment.closely,
                reread=self.assignment.reread,
                exclude=self.assignment.digest_exclude,
                world_size=self.assignment.world_size,
                step=lambda: self.step,
                progress=self._progress,
                is_framework=self.sites.is_framework,
                failed=lambda why: self.link.say("HookFailed", module="digests", why=why),
            )
            self.sites.observer = self.witness.calling
        if self.assignment.audit_share > 0 and self.assignment.world_size > 1:
            self.auditor = Auditor(
                Means(
                    say=self.link.say,
                    step=lambda: self.step,
                    operations=self.recorder.operations,
                    rank=self.assignment.rank,
                    world_size=self.assignment.world_size,
                    folder=os.path.dirname(self.assignment.server),
                    attempt=self.assignment.attempt,
                ),
                share=self.assignment.audit_share,
                replays=self.assignment.replays,
            )

    def _progress(self) -> int:
        """Goes on by as much on all ranks that do the same."""
        marks = 0 if self.marker is None else self.marker.total
        operations = 0 if self.recorder is None else self.recorder.operations()
        return (marks % _TURN) * _TURN + operations % _TURN

    def _told(self, said: bytes) -> None:
        """The agent wants to know more of a digest, or, in runs with `--chaos-allowed`, has a fault
        to be done."""
        if said.startswith(armed.ARM):
            armed.arm(self, said[len(armed.ARM) :].decode())
        elif self.witness is not None:
            self.witness.ask(said)

    def beat_forever(self) -> None:
        """Body of the heartbeat thread: shows that Python code can still run here."""
        while os.getpid() == self.pid:
            self._in_hand.look()
            self._page.beat(0 if self.recorder is None else self.recorder.operations())
            self._answering.rest(_BEAT_SECONDS)

    def counted_steps(self, steps: int) -> None:
        """The optimizer hook has seen `steps` steps; the script's own word counts more."""
        if self._told_steps or os.getpid() != self.pid:
            return
        with self._lock:
            if self.phase == "init":
                self.phase = "step"
            self._stepped(steps)

    def progress(
        self, step: int, loss: float | None, tokens: int | None, total_steps: int | None
    ) -> None:
        """The script says that `step` steps are complete."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self._told_steps = True
            if self.phase == "init" and step > 0:
                self.phase = "step"
            if loss is not None:
                self._judge_loss(step, loss, tokens)
                self._loss_finite = loss - loss == 0.0  # false for NaN and infinities
                self._loss = loss if self._loss_finite else None
            if tokens is not None:
                self._tokens = tokens
            if total_steps is not None:
                self._total_steps = total_steps
            self._stepped(step)

    def _judge_loss(self, step: int, loss: float, tokens: int | None) -> None:
        if self.losses is None:
            return
        try:
            self.losses.saw(step, loss, tokens)
        except Exception as error:  # the user's program goes on without this check
            self.losses = None
            self.link.say("HookFailed", module="losses", why=repr(error))

    def _doubt(self, **doubt: Any) -> None:
        self.link.say("DoubtRaised", doubt=doubt)

    def should_stop(self, step: int) -> bool:
        """Whether all ranks are to stop at `step`."""
        return os.getpid() == self.pid and step >= 0 and self._page.should_stop(step)

    def should_save(self, step: int) -> bool:
        """Whether all ranks are to save at `step`, and go on."""
        return os.getpid() == self.pid and step >= 0 and self._page.should_save(step)

    def enter(self, phase: str) -> str:
        """Be in `phase`; returns the one before."""
        if os.getpid() != self.pid:
            return phase
        with self._lock:
            before, self.phase = self.phase, phase
            self._publish()
        return before

    def _stepped(self, step: int) -> None:
        if step != self.step:
            self.step, self._step_ns = step, time.time_ns()
        self._publish()

    def _publish(self) -> None:
        self._page.put(
            step=self.step,
            phase=self.phase,
            step_ns=self._step_ns,
            loss=self._loss,
            loss_finite=self._loss_finite,
            tokens=self._tokens,
            total_steps=self._total_steps,
        )


_guest: Guest | None = None


def become(assignment: Assignment) -> Guest:
    """Make this process the worker of `assignment` and start its heartbeat."""
    import _thread

    global _guest  # noqa: PLW0603
    _guest = Guest(assignment)
    # Not threading.Thread: the user's threading.enumerate() and exit stay as they are.
    _thread.start_new_thread(_guest.beat_forever, ())
    return _guest


def current() -> Guest | None:
    """The guest of this process, if it is a rank."""
    if _guest is None or _guest.pid != os.getpid():
        return None
    return _guest
