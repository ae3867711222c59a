"""Streams of journal records to views. Each watcher reads the journal file at its own pace, so a
slow one costs no memory and never holds up the run."""

import asyncio
from collections.abc import AsyncGenerator

from harness.controller.loop import Loop
from harness.wire import control_pb2 as pb
from harness.wire.channel import BATCH_BYTES
from harness.wire.waiting import first_of, set_within

_PAUSE = 0.25
"""Seconds between two live batches to a watcher."""
_MOST_RECORDS = 5000


async def watch(
    loop: Loop, from_index: int, closing: asyncio.Event
) -> AsyncGenerator[pb.EventBatch, None]:
    """Batches of the journal from record `from_index` on, live until `closing` is set."""
    lines = loop.writer.lines_from(from_index)
    index = from_index
    try:
        while True:
            grew, last_round = loop.grew, closing.is_set()
            batch = lines.read(BATCH_BYTES)
            for at in range(0, len(batch), _MOST_RECORDS):
                part = batch[at : at + _MOST_RECORDS]
                yield pb.EventBatch(source="journal", first_index=index, records=part)
                index += len(part)
            if sum(map(len, batch)) > BATCH_BYTES // 2:
                continue  # still catching up
            if last_round:
                return
            if batch:
                await set_within(_PAUSE, closing)
            else:
                await first_of(grew.wait(), closing.wait())
    finally:
        lines.close()
