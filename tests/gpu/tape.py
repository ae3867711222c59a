"""A recording of NVML's answers, to be asked as the library is."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ANSWERS = Path(__file__).with_name("answers.json")


class NVMLError(Exception):
    """As pynvml's, with a subclass for each kind."""


def _error(kind: str) -> NVMLError:
    return type(f"NVMLError_{kind}", (NVMLError,), {})(kind)


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**value)
    return [_object(each) for each in value] if isinstance(value, list) else value


class Tape:
    """Answers from reading number `at`; a question that was never asked is not supported."""

    NVMLError = NVMLError

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self._readings = json.loads(ANSWERS.read_text())["readings"]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self._readings[0]["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        def ask(handle: int, *arguments: object) -> Any:
            key = " ".join([name, *map(str, arguments)])
            answers = self._readings[self.at]["devices"][handle]
            answer = answers.get(key, {"error": "NotSupported"})
            if isinstance(answer, dict) and "error" in answer:
                raise _error(answer["error"])
            return _object(answer)

        return ask
