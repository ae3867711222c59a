"""What the launcher's signals ask of the controller."""

import signal

from harness import orders as o


def command_of(number: int, name: str) -> o.Command:
    """The launcher has got signal `number`: preempt the run, or stop it."""
    if number == signal.SIGTERM:
        return o.Preempt(why=f"{name} received")
    if number == signal.SIGHUP:  # also what the launcher makes of a second SIGTERM
        return o.StopRun(why="the launcher was told to stop", signal=signal.SIGTERM)
    return o.StopRun(why=f"{name} received", signal=number)
