"""Import circles of modules: those imports within functions and for type checking count, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def circles(imports: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others; each sorted.

    Args:
        imports: module -> the modules that it imports; those that are no key are left out.

    Source: Tarjan, Depth-first search and linear graph algorithms, 1972.
    """
    found: list[list[str]] = []
    number: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> int:
        """Return the lowest number on the stack that the module leads to."""
        lowest = number[module] = len(number)
        stack.append(module)
        for other in sorted(imports[module]):
            if other in imports and other not in number:
                lowest = min(lowest, visit(other))
            elif other in stack:
                lowest = min(lowest, number[other])
        if lowest == number[module]:
            group = stack[stack.index(module) :]
            del stack[-len(group) :]
            found.extend([sorted(group)] if len(group) > 1 else [])
        return lowest

    for module in sorted(imports):
        if module not in number:
            visit(module)
    return sorted(found)
