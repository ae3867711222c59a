"""The tokens of a text, in an order that depends only on the seed and the position.

No loader holds any state: whoever knows how many sequences were consumed knows the next batch,
at any number of data-parallel ranks.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from harness.trainer import seeding
from harness.trainer.config import VOCAB, ConfigError
from harness.trainer.tokens import Tokens, is_token_file, mapped


def corpus(path: str = "") -> bytes:
    """The text to train on, in UTF-8.

    Without a path: the help topics that ship with Python, sorted, joined by blank lines,
    trailing blanks and runs of empty lines removed (about 460 kB; it differs a little between
    Python versions). Raises ConfigError when the file cannot be read.
    """
    if path:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"--data {path}: {error.strerror}") from None
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).encode()


def tokens(path: str, vocab: int) -> torch.Tensor:
    """What to train on, one integer a token: of a file of tokens, mapped into memory, or the bytes
    of a text.

    Raises ConfigError: not to be read, not whole, or more kinds of tokens than `vocab`.
    """
    try:
        ready = bool(path) and is_token_file(Path(path))
    except OSError as error:
        raise ConfigError(f"--data {path}: {error.strerror}") from None
    found = mapped(Path(path)) if ready else Tokens(_as_tokens(corpus(path)), VOCAB)
    if found.vocab > vocab:
        what = f"--data {path}" if path else "the text"
        raise ConfigError(f"--vocab {vocab}: {what} has {found.vocab} kinds of tokens; use that")
    return found.values


def _as_tokens(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0)


class Batches:
    """Shuffled windows of `seq_len` + 1 tokens; every epoch is its own permutation.

    An epoch ends in the middle of a batch, which goes on with the next one: every batch is full and
    every rank has as many, and no window is left out.
    """

    def __init__(
        self, text: bytes | torch.Tensor, *, seq_len: int, global_batch: int, seed: int
    ) -> None:
        """Raises ConfigError when the text holds not even one window."""
        if len(text) <= seq_len:
            unit = "bytes" if isinstance(text, bytes) or text.dtype == torch.uint8 else "tokens"
            raise ConfigError(f"--data: {len(text)} {unit} of text, --seq-len {seq_len} needs more")
        self._tokens = _as_tokens(text) if isinstance(text, bytes) else text
        self._seq_len = seq_len
        self._global_batch = global_batch
        self._seed = seed
        self._windows = (len(text) - 1) // seq_len
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @property
    def tokens_per_step(self) -> int:
        return self._global_batch * self._seq_len

    def _window(self, index: int) -> torch.Tensor:
        """Window number `index` since the start of the run, int64 of shape (seq_len + 1,)."""
        epoch, place = divmod(index, self._windows)
        if epoch != self._epoch:
            order = seeding.generator(self._seed, "epoch", epoch)
            self._order = torch.randperm(self._windows, generator=order)
            self._epoch = epoch
        start = int(self._order[place]) * self._seq_len
        return self._tokens[start : start + self._seq_len + 1].long()

    def batch(self, position: int, dp_rank: int, dp: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the global batch that begins after `position` sequences.

        Returns inputs and targets, int64 of shape (global_batch / dp, seq_len).
        """
        rows = self._global_batch // dp
        first = position + dp_rank * rows
        windows = torch.stack([self._window(first + i) for i in range(rows)])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
