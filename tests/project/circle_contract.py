"""Contract of import-linter, for `make check`: no circle of imports, those for type checking included."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

from tests.project.circles import circles


class NoCircles(Contract):
    """Contract that no module imports itself through others."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the circles."""
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        found = circles(imports)
        lines = [
            f"{module} -> {other} (line {', '.join(str(detail['line_number']) for detail in details)})"
            for group in found
            for module in group
            for other in sorted(imports[module] & set(group))
            if (details := graph.get_import_details(importer=module, imported=other))
        ]
        return ContractCheck(kept=not found, metadata={"lines": lines})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import of a circle."""
        for line in check.metadata["lines"]:
            output.print_error(line)
