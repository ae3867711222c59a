"""What a campaign found, as Markdown and as JUnit XML."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from xml.sax.saxutils import quoteattr

from harness.chaos.campaign import Cell

_NAMES = (
    "done",
    "class",
    "ranks",
    "innocents",
    "action",
    "outcome",
    "lost steps",
    "final",
    "residue",
)


def markdown(cells: Sequence[Cell], command: str) -> str:
    """The whole report."""
    judged = [cell for cell in cells if cell.judgment is not None]
    right = sum(cell.right for cell in cells)
    lines = [
        "# Chaos: what was broken, and what was said of it",
        "",
        f"`{command}`: {len(cells)} runs, {right} right.",
        "",
        *_rates(judged),
        "",
        "## Kinds x workloads",
        "",
        *_coverage(cells),
        "",
        "## Said for expected",
        "",
        *_confusion(judged),
        "",
        *_failures(cells),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _rates(cells: Sequence[Cell]) -> list[str]:
    lines = ["| asked | right | of |", "|---|---|---|"]
    for name in _NAMES:
        answers = [cell.judgment.check(name) for cell in cells if cell.judgment is not None]
        asked = [answer for answer in answers if answer is not None]
        if asked:
            share = 100 * sum(asked) / len(asked)
            lines.append(f"| {name} | {sum(asked)} ({share:.1f} %) | {len(asked)} |")
    times = [
        cell.judgment.mttd for cell in cells if cell.judgment and cell.judgment.mttd is not None
    ]
    if times:
        lines.append(
            f"| harm to verdict, s | median {median(times):.2f}, worst {max(times):.2f} | "
            f"{len(times)} |"
        )
    return lines


def _coverage(cells: Sequence[Cell]) -> list[str]:
    """Right of run, for each kind and workload, with the phases that faults were done in."""
    columns = sorted({cell.plan.workload.name for cell in cells})
    rows: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        rows.setdefault((cell.area, cell.kind), {}).setdefault(cell.plan.workload.name, []).append(
            cell
        )
    lines = [f"| area | kind | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for (area, kind), found in sorted(rows.items()):
        row = []
        for column in columns:
            mine = found.get(column, [])
            row.append(f"{sum(c.right for c in mine)} of {len(mine)}" if mine else "")
        lines.append(f"| {area} | {kind} | {' | '.join(row)} |")
    return lines


def _confusion(cells: Sequence[Cell]) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        if cell.judgment is not None:
            counts[cell.judgment.expected, cell.judgment.said] += 1
    lines = ["| expected | said | runs |", "|---|---|---|"]
    lines += [
        f"| {expected} | {'the same' if expected == said else said} | {count} |"
        for (expected, said), count in sorted(counts.items())
    ]
    return lines


def _failures(cells: Sequence[Cell]) -> list[str]:
    wrong = [cell for cell in cells if not cell.right]
    if not wrong:
        return []
    lines = ["## Not right", "", "| plan | what is wrong |", "|---|---|"]
    for cell in wrong:
        lines.append(f"| {cell.plan.name} | {'; '.join(cell.wrong()).replace('|', '/')} |")
    return lines


def junit(cells: Sequence[Cell]) -> str:
    """One test case a run, for whatever reads such files."""
    failures = sum(not cell.right for cell in cells)
    seconds = sum(cell.judgment.seconds for cell in cells if cell.judgment is not None)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="chaos" tests="{len(cells)}" failures="{failures}" time="{seconds:.1f}">',
    ]
    for cell in cells:
        took = 0.0 if cell.judgment is None else cell.judgment.seconds
        head = (
            f"  <testcase classname={quoteattr('chaos.' + cell.kind)} "
            f'name={quoteattr(cell.plan.name)} time="{took:.1f}"'
        )
        if cell.right:
            lines.append(f"{head}/>")
        else:
            lines += [
                f"{head}>",
                f"    <failure message={quoteattr('; '.join(cell.wrong()))}/>",
                "  </testcase>",
            ]
    return "\n".join([*lines, "</testsuite>"]) + "\n"
