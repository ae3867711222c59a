"""Record what NVML answers on this machine, for tests on machines without a GPU.

`python scripts/gpu_record.py [SECONDS]` writes JSON to stdout: readings as `harness.agent.nvml`
takes them, one every five seconds, with every question, its arguments and its answer.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.agent.nvml import NoGpus, Nvml, load

_APART_SECONDS = 5.0


class Recorder:
    """pynvml, with a memory of what it was asked per GPU."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.devices: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith("nvmlDeviceGet") or name.startswith("nvmlDeviceGetCount"):
            return found
        if name == "nvmlDeviceGetHandleByIndex":
            return self._handle
        return lambda handle, *arguments: self._asked(name, found, handle, arguments)

    def begin(self) -> None:
        """A new reading."""
        self.devices = [{} for _ in self._places]

    def _handle(self, index: int) -> Any:
        handle = self._library.nvmlDeviceGetHandleByIndex(index)
        self._places[id(handle)] = index
        return handle

    def _asked(
        self, name: str, question: Callable[..., Any], handle: Any, arguments: tuple[Any, ...]
    ) -> Any:
        answers = self.devices[self._places[id(handle)]]
        key = " ".join([name, *map(str, arguments)])
        try:
            answer = question(handle, *arguments)
        except self._library.NVMLError as error:
            answers[key] = {"error": type(error).__name__.removeprefix("NVMLError_")}
            raise
        answers[key] = _plain(answer)
        return answer


def _plain(answer: Any) -> Any:
    if isinstance(answer, int | float | str | None):
        return answer
    if isinstance(answer, list | tuple):
        return [_plain(each) for each in answer]
    names = [field[0] for field in getattr(answer, "_fields_", ())] or vars(answer)
    values = {name: getattr(answer, name) for name in names}
    return {k: v for k, v in values.items() if isinstance(v, int | float | str)}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    try:
        recorder = Recorder(load())
        nvml = Nvml(recorder)
    except NoGpus as error:
        print(f"no GPU to record: {error}", file=sys.stderr)
        return 1
    readings, until = [], time.monotonic() + seconds
    while True:
        recorder.begin()
        nvml.read()
        readings.append({"devices": recorder.devices})
        if time.monotonic() + _APART_SECONDS > until:
            break
        time.sleep(_APART_SECONDS)
    nvml.close()
    print(json.dumps({"about": "NVML's answers, recorded", "readings": readings}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
