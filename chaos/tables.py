"""What a campaign found, as Markdown and as JUnit XML."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from xml.sax.saxutils import quoteattr

from harness.chaos import kinds
from harness.chaos.campaign import Cell
from harness.chaos.judge import OF_EACH, Judgment, Row
from harness.faults import whom

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
    judged = [cell.judgment for cell in cells if cell.judgment is not None]
    right = sum(cell.right for cell in cells)
    rows = [row for judgment in judged for row in judgment.rows]
    told = f"{len(cells)} runs, {right} right"
    if len(rows) != len(cells):
        told += f"; {len(rows)} faults, {sum(not row.wrong for row in rows)} told rightly"
    lines = [
        "# Chaos: what was broken, and what was said of it",
        "",
        f"`{command}`: {told}.",
        "",
        *_rates(judged),
        "",
        "## Kinds x workloads",
        "",
        *_coverage(cells),
        "",
        "## Said for expected",
        "",
        *_confusion(rows),
        "",
        *_failures(cells),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _rates(judged: Sequence[Judgment]) -> list[str]:
    """Of faults where a question is put to each of them, else of runs."""
    lines = ["| asked | right | of |", "|---|---|---|"]
    rows = [row for judgment in judged for row in judgment.rows]
    for name in _NAMES:
        if name in OF_EACH:
            answers, what = [name not in row.wrong for row in rows], "faults"
        else:
            given = [judgment.check(name) for judgment in judged]
            answers, what = [answer for answer in given if answer is not None], "runs"
        if answers:
            share = 100 * sum(answers) / len(answers)
            lines.append(f"| {name} | {sum(answers)} ({share:.1f} %) | {len(answers)} {what} |")
    times = [row.mttd for row in rows if row.mttd is not None]
    if times:
        lines.append(
            f"| harm to verdict, s | median {median(times):.2f}, worst {max(times):.2f} | "
            f"{len(times)} faults |"
        )
    return lines


def _coverage(cells: Sequence[Cell]) -> list[str]:
    """Told rightly of done, for each kind and workload, with whom it was done to."""
    columns = list(dict.fromkeys(cell.plan.workload.name for cell in cells))
    found: dict[tuple[str, str], dict[str, list[tuple[str, bool]]]] = {}
    for cell in cells:
        for kind, target, right in _done(cell):
            area = str(kinds.find(kind).area) if kind in kinds.names() else "combined"
            places = found.setdefault((area, kind), {}).setdefault(cell.plan.workload.name, [])
            places.append((target, right))
    lines = [f"| area | kind | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for (area, kind), mine in sorted(found.items()):
        texts = [_place(mine.get(column, [])) for column in columns]
        lines.append(f"| {area} | {kind} | {' | '.join(texts)} |")
    return lines


def _done(cell: Cell) -> list[tuple[str, str, bool]]:
    """Kind, target and whether it was told rightly, of each fault; a run that is wrong as a whole
    is wrong for a fault that was alone in it."""
    rows = () if cell.judgment is None else cell.judgment.rows
    if len(cell.plan.faults) <= 1 or not rows:
        target = rows[0].target if rows else whom(cell.plan.faults[0].fault)
        return [(cell.kind, target, cell.right)]
    return [(row.kind, row.target, not row.wrong) for row in rows]


def _place(done: Sequence[tuple[str, bool]]) -> str:
    if not done:
        return ""
    right = sum(ok for _, ok in done)
    ranks = sorted({int(target.split()[-1]) for target, _ in done})
    what = done[0][0].split()[0]
    return f"{right} of {len(done)} ({what} {', '.join(map(str, ranks))})"


def _confusion(rows: Sequence[Row]) -> list[str]:
    counts = Counter((kinds.find(row.kind).expected, row.said) for row in rows)
    lines = ["| expected | said | faults |", "|---|---|---|"]
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
