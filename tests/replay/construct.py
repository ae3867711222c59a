"""Write the constructed recordings: `python -m tests.replay.construct`."""

from pathlib import Path

from harness import events as e
from tests.replay.replaying import DECIDED, write
from tests.replay.scenarios import SCENARIOS

RECORDINGS = Path(__file__).parent / "recordings"


def main() -> None:
    for scenario in SCENARIOS:
        folder = RECORDINGS / scenario.name
        happened: list[e.Record] = [
            record for record in scenario.build().records if not isinstance(record.event, DECIDED)
        ]
        write(folder, happened, scenario.expected)


if __name__ == "__main__":
    main()
