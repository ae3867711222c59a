"""The reference trainer, killed on purpose and noting every step.

`killed_trainer.py PLAN HISTORY …`; what follows goes to the trainer.

PLAN is a JSON list with one `[step, rank, share]` for each attempt: while the rank takes that step,
or the first one after it that the attempt takes, at that share of the time that a step lasts here,
it gets SIGKILL. Attempts beyond the list live.
HISTORY is a folder: each rank appends a line per step, with loss and gradient norm bit for bit.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from harness.trainer import train


def main() -> int:
    plan, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    step, victim, share = plan[attempt] if attempt < len(plan) else (-1, -1, 0.0)
    one_step, lasts, armed = train.Trainer._one_step, [0.02], rank != victim

    def noted(trainer: Any) -> train.Step:
        nonlocal armed
        began = time.monotonic()
        if not armed and trainer._step + 1 >= step:
            armed = True
            delay = threading.Timer(share * lasts[-1], os.kill, (os.getpid(), signal.SIGKILL))
            delay.daemon = True
            delay.start()
        done = one_step(trainer)
        line = f"{attempt} {done.step} {done.loss.hex()} {done.grad_norm.hex()}\n"
        with open(folder / str(rank), "a", encoding="ascii") as history:
            history.write(line)
        # The first step of an attempt takes far longer than those to come.
        lasts.append(min(time.monotonic() - began, lasts[0] if len(lasts) == 1 else math.inf))
        return done

    train.Trainer._one_step = noted  # type: ignore[method-assign]
    return train.main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
