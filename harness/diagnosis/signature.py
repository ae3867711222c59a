"""What makes two failures the same one, as a line of text that journals keep."""

import re
from dataclasses import dataclass

from harness.incidents import Where

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """`what` is an exception type, a signal name or an exit code; `detail` its message.

    Numbers in `detail` do not count: addresses, ports, ranks and losses differ from try to try.
    """

    verdict: str
    what: str
    detail: str = ""
    place: str = ""
    start_up: bool = False
    """The rank had come to no collective and no step."""

    def text(self) -> str:
        parts = (
            self.verdict,
            self.what,
            _VARYING.sub("N", self.detail)[:200],
            self.place,
            "start-up" if self.start_up else "",
        )
        return "|".join(part.replace("|", "/").replace("\n", " ") for part in parts)

    @staticmethod
    def parse(text: str) -> "Signature":
        verdict, what, detail, place, start_up = (text.split("|") + [""] * 5)[:5]
        return Signature(
            verdict=verdict, what=what, detail=detail, place=place, start_up=bool(start_up)
        )


def place_text(where: Where | None) -> str:
    return "" if where is None else f"{where.file}:{where.line}"
