"""The ranks of a run side by side, from its state: code, packages, environment, model, clocks."""

from collections.abc import Mapping, Sequence

from harness.doctor.checks import Check
from harness.setups import Difference, Part, Setup, differences, replicas
from harness.state import AttemptState, RunState
from harness.topology import ranks_name

_SHOWN = 3
_WHAT: Mapping[Part, tuple[str, str]] = {
    "python": ("python", "start all nodes with the same interpreter"),
    "arguments": ("arguments", "give all nodes the same command line"),
    "environment": (
        "environment",
        "variables that steer libraries must be alike; unset them, or set them on all nodes",
    ),
    "packages": ("packages", "install the same versions everywhere, best from one lock file"),
    "code": ("code", "bring all nodes to the same commit; a shared folder avoids this"),
}


def side_by_side(state: RunState) -> list[Check]:
    """What the ranks of the newest attempt that said anything have alike, and what not."""
    attempt = next((each for each in reversed(state.attempts) if each.setups), None)
    if attempt is None:
        why = "no rank of it has told what it runs with"
        return [Check(name="ranks", level="skip", says=why)]
    return [
        *alike(attempt.setups),
        _parameters(attempt, state.coordinates),
        *_clocks(state),
    ]


def alike(told: Mapping[int, Setup]) -> list[Check]:
    """Python, arguments, environment, packages and code of the ranks side by side."""
    found = differences(told)
    return [_part(part, found, told) for part in _WHAT]


def _part(part: Part, found: Sequence[Difference], told: Mapping[int, Setup]) -> Check:
    what, help = _WHAT[part]
    mine = [difference for difference in found if difference.part == part]
    if not mine:
        return Check(name=what, level="ok", says=f"alike on {_all(told)}{_count(part, told)}")
    shown = [_words(difference) for difference in mine[:_SHOWN]]
    more = [f"and {len(mine) - _SHOWN} more"] if len(mine) > _SHOWN else []
    return Check(
        name=what,
        level="warn",
        says="; ".join([*shown, *more]),
        help=help,
        facts={
            "differences": [
                {
                    "name": difference.name,
                    "values": [
                        {"value": value, "ranks": list(ranks)} for value, ranks in difference.values
                    ],
                }
                for difference in mine
            ]
        },
    )


def _all(told: Mapping[int, Setup]) -> str:
    return f"all {len(told)} ranks" if len(told) > 1 else ranks_name(list(told))


def _count(part: Part, told: Mapping[int, Setup]) -> str:
    if part in ("python", "arguments"):
        setup = next(iter(told.values()))
        return f": {setup.python if part == 'python' else ' '.join(setup.arguments)}"[:70]
    names = {name for setup in told.values() for name in getattr(setup, part)}
    of = {"environment": "variable", "packages": "package", "code": "file"}[part]
    return f", {len(names)} {of}{'' if len(names) == 1 else 's'}"


def _words(difference: Difference) -> str:
    """`NCCL_DEBUG is INFO on rank 3, unset on ranks 0-2`."""
    odd_first = list(reversed(difference.values))
    texts = [
        f"{'unset' if value is None else value[:60]} on {ranks_name(ranks)}"
        for value, ranks in odd_first[:_SHOWN]
    ]
    name = f"{difference.name} is " if difference.name else ""
    return name + ", ".join(texts)


def _parameters(attempt: AttemptState, coordinates: Mapping[int, Mapping[str, int]]) -> Check:
    """Ranks that hold the same part of the model should hold as much of it."""
    told = {rank: s.parameters for rank, s in attempt.setups.items() if s.parameters is not None}
    if not told:
        says = "no rank has made two optimizer steps yet"
        return Check(name="parameters", level="skip", says=says)
    odd: list[str] = []
    for members in replicas(sorted(told), coordinates):
        counts: dict[int, list[int]] = {}
        for rank in members:
            counts.setdefault(told[rank] or 0, []).append(rank)
        if len(counts) > 1:
            order = sorted(counts.items(), key=lambda item: len(item[1]))
            odd.append(", ".join(f"{count:,} on {ranks_name(ranks)}" for count, ranks in order[:3]))
    facts = {"parameters": {str(rank): count for rank, count in sorted(told.items())}}
    if odd:
        return Check(
            name="parameters",
            level="warn",
            says="; ".join(odd[:_SHOWN]),
            help="replicas should train as many: is a layer frozen or made on some ranks alone?",
            facts=facts,
        )
    least, most = min(told.values()), max(told.values())
    says = f"{least:,} on each of {len(told)} ranks"
    if least != most:
        says = f"{least:,} to {most:,} a rank, alike where ranks hold the same part"
    return Check(name="parameters", level="ok", says=says, facts=facts)


def _clocks(state: RunState) -> list[Check]:
    """Of nodes on several hosts, as far as their records tell: half a second is not seen."""
    hosts = {node.host for node in state.nodes.values()}
    if len(hosts) < 2:
        return []
    apart = {node: state.clocks.offset_ns(node) for node in state.nodes}
    facts = {
        "ahead_seconds": {
            str(node): None if ns is None else round(ns / 1e9, 3) for node, ns in apart.items()
        }
    }
    wrong = {node: ns for node, ns in apart.items() if ns}
    if not wrong:
        says = f"those of {len(hosts)} hosts are alike, as far as records tell"
        return [Check(name="clocks", level="ok", says=says, facts=facts)]
    texts = [
        f"node {node} ({state.nodes[node].host}) is {abs(ns) / 1e9:.1f} s"
        f" {'ahead' if ns > 0 else 'behind'}"
        for node, ns in list(wrong.items())[:_SHOWN]
    ]
    return [
        Check(
            name="clocks",
            level="warn",
            says="; ".join(texts),
            help="run chrony or ntpd on all nodes: what happened first is told by their clocks",
            facts=facts,
        )
    ]
