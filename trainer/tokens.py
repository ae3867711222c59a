"""A file of tokens that is mapped into memory and never read whole, and the step that makes it:

    python -m harness.trainer.tokens book.txt more.txt --out book.tokens
    python -m harness.trainer.tokens book.txt --out book.tokens --tokenizer bpe --vocab 1024

Bytes need nothing; BPE needs the package `tokenizers` and leaves what it learned beside the file.
A file is 32 bytes of header (magic, vocabulary, bytes of a token, count; little endian) and the
tokens.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from harness.trainer.config import VOCAB, ConfigError
from harness.trainer.flags import OneLineParser

_MAGIC = b"harness tokens 1"
_HEADER = struct.Struct("<16sIIQ")
_DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a text, one after another, and how many there may be."""

    values: torch.Tensor
    vocab: int


def is_token_file(path: Path) -> bool:
    """Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def mapped(path: Path) -> Tokens:
    """The tokens of a file; pages are read when they are used.

    Raises ConfigError when it is not whole.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    size = path.stat().st_size
    if len(head) < _HEADER.size:
        raise ConfigError(f"--data {path}: the header is cut off; make it again")
    _, vocab, width, count = _HEADER.unpack(head)
    if width not in _DTYPES or size != _HEADER.size + width * count:
        raise ConfigError(f"--data {path}: {size} bytes are not those of {count} tokens")
    raw = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return Tokens(raw[_HEADER.size :].view(_DTYPES[width]), vocab)


def write(path: Path, parts: Iterable[Sequence[int] | bytes], vocab: int) -> int:
    """Write tokens, part by part; how many there were. The file appears when it is whole."""
    width = 1 if vocab <= 2**8 else 2 if vocab <= 2**16 else 4
    count, temporary = 0, None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(b"\0" * _HEADER.size)
            for part in parts:
                count += len(part)
                file.write(_packed(part, width))
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, vocab, width, count))
        os.replace(temporary, path)
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    return count


def _packed(part: Sequence[int] | bytes, width: int) -> bytes:
    if isinstance(part, bytes) and width == 1:
        return part
    return struct.pack(f"<{len(part)}{' BH I'[width]}", *part)


def _chunks(files: Iterable[BinaryIO]) -> Iterator[bytes]:
    for file in files:
        while part := file.read(_CHUNK):
            yield part


def _learned(texts: list[str], vocab: int) -> Any:
    """Byte-level BPE, learned from these texts."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ConfigError("--tokenizer bpe needs a package: pip install tokenizers") from None
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False),
    )
    return made


def _made(arguments: Any) -> str:
    """Write the file; what to tell."""
    out = Path(arguments.out)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: no such folder")
    if arguments.tokenizer == "bytes":
        if arguments.vocab is not None:
            raise ConfigError(f"--vocab {arguments.vocab}: bytes have {VOCAB}")
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(name, "rb")) for name in arguments.files]
            count = write(out, _chunks(files), VOCAB)
        return f"{out}: {count:,} tokens, one a byte; train with --data {out}"
    vocab = arguments.vocab or 1024
    if vocab < VOCAB:
        raise ConfigError(f"--vocab {vocab}: byte-level BPE has at least {VOCAB}")
    texts = [Path(name).read_text(encoding="utf-8") for name in arguments.files]
    bpe = _learned(texts, vocab)
    bpe.save(f"{out}.json")
    found = bpe.get_vocab_size()
    count = write(out, (bpe.encode(text).ids for text in texts), found)
    return (
        f"{out}: {count:,} tokens of {found:,} kinds, learned in {out}.json; "
        f"train with --data {out} --vocab {found}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 written, 2 something was wrong (one line on stderr)."""
    parser = OneLineParser(prog="harness.trainer.tokens", description="Make a file of tokens.")
    parser.add_argument("files", nargs="+", metavar="TEXT", help="UTF-8 text (bytes: any file)")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", choices=("bytes", "bpe"), default="bytes")
    parser.add_argument("--vocab", type=int, default=None, help="bpe: kinds of tokens, 1024")
    try:
        print(_made(parser.parse_args(argv)))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except UnicodeDecodeError as error:
        print(f"error: not UTF-8 text: {error}; --tokenizer bytes takes any", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
