"""Strongly connected components of a graph, after Tarjan (1972), without recursion."""

from collections.abc import Iterable, Sequence


def components(
    edges: Sequence[Sequence[int]], starts: Iterable[int] | None = None
) -> list[list[int]]:
    """Components of the graph with nodes `0 .. len(edges) - 1`, sinks first; only of nodes that can
    be reached from `starts`, where these are given.

    Every component comes after all that it leads to. Linear in nodes and edges.
    """
    index = [-1] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for start in range(len(edges)) if starts is None else starts:
        if index[start] >= 0:
            continue
        work = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = count
                count += 1
                stack.append(node)
                on_stack[node] = True
            targets = edges[node]
            while at < len(targets):
                target = targets[at]
                at += 1
                if index[target] < 0:
                    work.append((node, at))
                    work.append((target, 0))
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    found.append(_popped(stack, on_stack, node))
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return found


def _popped(stack: list[int], on_stack: list[bool], until: int) -> list[int]:
    component = []
    while True:
        node = stack.pop()
        on_stack[node] = False
        component.append(node)
        if node == until:
            return component
