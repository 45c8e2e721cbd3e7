"""Write the table of docs/security.md, after a change of a mark ``proves`` or of security_table.txt:
``python -m tests.project.security_table``.

The file has the threats; the marks of the tests say how many tests attack each of them.
"""

from __future__ import annotations

import ast
from collections import Counter

from tests.project.source import ROOT, parse

PAGE = ROOT / "docs" / "security.md"
FILE = ROOT / "tests" / "project" / "security_table.txt"
_BEGINS = "<!-- what stops whom -->\n"
_ENDS = "\n\n"


def threats() -> dict[str, list[str]]:
    """Return attacker, asset and protection by the key of each threat."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {key: cells for key, *cells in rows}


def proofs() -> Counter[str]:
    """Return the number of tests that have the mark ``proves`` with each key."""
    found = Counter[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.proves(" in path.read_text(encoding="utf-8"):
            for node in ast.walk(parse(path)):
                if isinstance(node, ast.FunctionDef):
                    found.update(key for mark in node.decorator_list for key in _keys(mark))
    return found


def _keys(mark: ast.expr) -> list[str]:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.proves":
        return [ast.literal_eval(key) for key in mark.args]
    return []


def table() -> str:
    """Return the rows of the table."""
    counts = proofs()
    rows = [f"|{' |'.join(cells)} |{counts[key]}|" for key, cells in threats().items()]
    return "\n".join(["|attacker |asset |protection |tests|", "|---|---|---|---|", *rows])


def page_with_table(text: str) -> str:
    """Return the page with the table as the file and the marks have it."""
    head, begins, rest = text.partition(_BEGINS)
    return head + begins + table() + _ENDS + rest.partition(_ENDS)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
