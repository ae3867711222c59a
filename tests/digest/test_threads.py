"""One thread inside, and what the user had outside: for other threads always."""

from __future__ import annotations

import threading

import torch

from harness.digest.threads import one_thread


def test_only_the_calling_thread_and_only_within() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    seen: list[int] = []
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
        assert torch.get_num_threads() == 3
        assert seen == [3]
    finally:
        torch.set_num_threads(before)
