"""The part of chaos that lives in a rank: imported there only when a fault is armed for it.

`arm` comes from the agent, with the rank's start or later over the link. It waits until torch's
optimizers are there, hooks them for as long as a fault is due, and takes its hooks out again. A
fault strikes in the thread that trains, at one of these moments: before the script's first line
(phase init), between the gradients' reduction and the update, after the update, at the next
collective that Python calls, or when a phase is entered.
"""

import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.chaos import kinds
from harness.faults import Fault
from harness.worker.sites import METHODS

if TYPE_CHECKING:
    from harness.worker.guest import Guest

_OPTIMIZERS = "torch.optim.optimizer"
_LOOK_SECONDS = 0.002


class Inside:
    """What a kind is given: the rank, the moment, and the ways to strike."""

    def __init__(self, host: "Guest", number: int, fault: Fault) -> None:
        self.host = host
        self.fault = fault
        self.kind = kinds.check(fault)
        self.values = kinds.values(self.kind, fault.parameters)
        self.optimizer: Any = None
        """The one that is about to step, or has."""
        self.number = number
        self._armed_at = time.monotonic()
        self.struck = False

    @property
    def random(self) -> random.Random:
        """The same draws for the same seed, wherever the fault is done."""
        return random.Random(self.fault.seed)

    def due(self) -> bool:
        """Whether the fault's moment has come."""
        fault, host = self.fault, self.host
        if self.struck:
            return False
        if fault.step is not None and host.step < fault.step:
            return False
        if fault.seq_id is not None and self._operations() < fault.seq_id:
            return False
        if fault.seconds is not None and time.monotonic() - self._armed_at < fault.seconds:
            return False
        return not fault.phase or host.phase == fault.phase

    def _operations(self) -> int:
        return 0 if self.host.recorder is None else self.host.recorder.operations()

    def strike(self, what: str = "") -> None:
        """Tell that the harm is done from here on: the next line may be this process's last."""
        self.struck = True
        self.host.link.say("FaultDone", number=self.number, at_ns=time.time_ns(), what=what)

    def act(self) -> None:
        """Let the kind do it."""
        try:
            self.kind.do(self)
        except kinds.Unfit as unfit:
            self.struck = True
            self.host.link.say("FaultUnfit", number=self.number, why=str(unfit))

    # --- moments -------------------------------------------------------------------------------

    def before_update(self, do: Callable[[], None]) -> None:
        """`do` once, between the reduction of the gradients and the update."""
        self._on_step("register_optimizer_step_pre_hook", do, every=False)

    def after_update(self, do: Callable[[], None]) -> None:
        """`do` once, when an update is complete."""
        self._on_step("register_optimizer_step_post_hook", do, every=False)

    def every_step(self, do: Callable[[], None]) -> None:
        """`do` before each update from the fault's moment on."""
        self._on_step("register_optimizer_step_pre_hook", do, every=True)

    def _on_step(self, register: str, do: Callable[[], None], *, every: bool) -> None:
        if self.fault.phase not in ("", "init", "step"):
            self._on_phase(do)
            return

        def hook(optimizer: Any, args: Any, arguments: Any) -> None:
            if self.due() or (every and self.struck):
                self.optimizer = optimizer
                if not self.struck:
                    self.strike()
                if not every:
                    handle.remove()
                do()

        handle = getattr(sys.modules[_OPTIMIZERS], register)(hook)

    def _on_phase(self, do: Callable[[], None]) -> None:
        enter = self.host.enter

        def entered(phase: str) -> str:
            before = enter(phase)
            if self.due():
                self.strike()
                do()
            return before

        self.host.enter = entered  # type: ignore[method-assign]

    def next_collective(
        self, do: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any],
        *, only: tuple[str, ...] = (), every: bool = False,
    ) -> None:  # fmt: skip
        """Instead of the next collective that is called from Python, `do(original, group, args,
        kwargs)`; of the methods in `only`, where some are given."""
        group_class = sys.modules["torch._C._distributed_c10d"].ProcessGroup
        for name in only or METHODS:
            if hasattr(group_class, name):
                setattr(group_class, name, self._instead(group_class, name, do, every=every))

    def _instead(self, owner: Any, name: str, do: Callable[..., Any], *, every: bool) -> Any:
        original = getattr(owner, name)

        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() or group.size() < 2:
                return original(group, *args, **kwargs)
            if self.due():
                self.strike(name)
                return do(original, group, args, kwargs)
            if every and self.struck:
                return do(original, group, args, kwargs)
            return original(group, *args, **kwargs)

        return collective

    def replace(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        """`owner.name` becomes `made(original)`."""
        setattr(owner, name, made(getattr(owner, name)))


_OPEN: list[Inside] = []
"""Faults that are armed here; kept so that nothing of theirs is collected."""


def arm(host: "Guest", text: str, *, at_start: bool) -> None:
    """Arm the faults of `text`, JSON by `encode`. Raises nothing: what cannot be done is told."""
    try:
        faults = [(number, Fault(**raw)) for number, raw in json.loads(text)]
        found = [Inside(host, number, fault) for number, fault in faults]
    except Exception as error:  # whatever arrived here: the rank goes on
        host.link.say("HookFailed", module="chaos", why=repr(error))
        return
    _OPEN.extend(found)
    for inside in found:
        if at_start and inside.fault.phase == "init":
            _at_start(inside)
        elif _optimizers_ready():
            inside.act()
        else:
            threading.Thread(target=_when_ready, args=(inside,), daemon=True).start()


def _at_start(inside: Inside) -> None:
    """Before the script's first line: the hooks of the kind fire as they are made."""

    def now(do: Callable[[], None]) -> None:
        if inside.due():
            inside.strike()
            do()

    for moment in ("before_update", "after_update", "every_step"):
        setattr(inside, moment, now)
    inside.act()


def _optimizers_ready() -> bool:
    module = sys.modules.get(_OPTIMIZERS)
    spec = getattr(module, "__spec__", None)
    ready = hasattr(module, "register_optimizer_step_pre_hook")
    return ready and not getattr(spec, "_initializing", False)


def _when_ready(inside: Inside) -> None:
    while not _optimizers_ready():
        time.sleep(_LOOK_SECONDS)
    with contextlib.suppress(Exception):
        inside.act()


def encode(faults: Mapping[int, Fault]) -> str:
    """Faults with their numbers, as `arm` reads them."""
    from dataclasses import asdict

    return json.dumps([[number, asdict(fault)] for number, fault in faults.items()])
