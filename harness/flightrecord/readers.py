"""Readers (`reader`) at work on many files, and what they answer."""

import marshal
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.flightrecord.digest import Digest

_CODE = """\
import sys
sys.path.insert(0, sys.argv[1])
from harness.flightrecord.reader import main
main()
"""
_ROOT = Path(__file__).resolve().parents[2]
_FILES_PER_READER = 64
_MOST_READERS = 8

Answer = tuple[Path, Digest | None, str]
"""A file, its digest, or why it has none."""


def read_all(paths: Sequence[Path]) -> Iterator[Answer]:
    """Answers for all `paths`, in any order, as they come."""
    cores = max(1, (os.cpu_count() or 1) // 2)  # side by side they cost each other time
    count = min(len(paths), _MOST_READERS, cores, 1 + len(paths) // _FILES_PER_READER)
    answers: queue.Queue[Answer | BaseException | None] = queue.Queue(maxsize=4 * max(1, count))

    def work(share: Sequence[Path]) -> None:
        try:
            for answer in _share(share):
                answers.put(answer)
        except BaseException as error:
            answers.put(error)
        finally:
            answers.put(None)

    for at in range(count):
        threading.Thread(target=work, args=(paths[at::count],), daemon=True).start()
    while count:
        answer = answers.get()
        if answer is None:
            count -= 1
        elif isinstance(answer, BaseException):
            raise answer
        else:
            yield answer


def _share(paths: Sequence[Path]) -> Iterator[Answer]:
    """One reader after another: a file that kills its reader costs that file alone."""
    at = 0
    while at < len(paths):
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            try:
                reader.stdin.write(marshal.dumps([str(path) for path in paths[at:]]))
                reader.stdin.close()
            except BrokenPipeError:
                pass
            while at < len(paths):
                head = reader.stdout.read(8)
                body = reader.stdout.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
                if not body:
                    break
                yield _answer(paths[at], body)
                at += 1
        if at < len(paths):
            yield paths[at], None, f"refused: {_end(reader.returncode)}"
            at += 1


def _answer(path: Path, body: bytes) -> Answer:
    kind, value = _parts(body)
    return (path, value, "") if kind == "digest" else (path, None, str(value))


def _parts(body: bytes) -> tuple[str, Any]:
    kind, value = marshal.loads(body)
    return kind, value


def _end(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "reading it takes too long"
    return f"reading it ended the reader ({signal.Signals(-code).name if code < 0 else code})"
