"""dlapp-doctor: checks of dlapp's requirements, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_FAILED
from dlapp.tools.common import command, json_option, note, print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlapp.doctor.findings import Finding

_SUBJECT_WIDTH = 24


@command("dlapp-doctor", example="dlapp-doctor --cluster yarn")
@click.option("--cluster", metavar="NAME", help="Check this engine instead of the configured one.")
@click.option("--defaults", is_flag=True, help="Also print the keys that have their default value.")
@click.option(
    "--node",
    type=click.Choice(["any", "all"]),
    is_flag=False,
    flag_value="any",
    metavar="[all]",
    help="Also check from a node of the cluster, in a container; --node all: from each.",
)
@json_option("Print the findings as JSON.")
def main(cluster: str | None, defaults: bool, node: str | None, as_json: bool) -> int:
    """Check what dlapp needs here: configuration, engine, storage, GPUs, Docker.

    It prints a line for each check: pass, warn or fail, with the repair. The exit code is 1 if a check failed.
    """
    from dlapp.doctor.run import diagnosis

    findings = diagnosis(cluster=cluster, defaults=defaults, node=node or "")
    shown = []
    for one in findings:
        # Of many nodes, only what must be done.
        if not as_json and (not one.node or one.verdict != "pass"):
            say(line_of(one))
        shown.append(one)
    count = {verdict: sum(one.verdict == verdict for one in shown) for verdict in ("pass", "warn", "fail")}
    if as_json:
        print_json({"findings": [one._asdict() for one in shown], "count": count})
    else:
        if table := node_table(shown):
            say(*table)
        note(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return EXIT_FAILED if count["fail"] else 0


def line_of(finding: Finding) -> str:
    """Return the line of a finding: ``warn  hdfs.home    /user/tony is not there; make it …``"""
    repair = f"; {finding.repair}" if finding.repair else ""
    node = f"{finding.node}: " if finding.node else ""
    return f"{finding.verdict}  {finding.subject:<{_SUBJECT_WIDTH}}  {node}{finding.found}{repair}"


def node_table(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each checked node, by name, with the number of passed checks; empty if there are no nodes."""
    counts: dict[str, dict[str, int]] = {}
    for one in findings:
        if one.node:
            of_node = counts.setdefault(one.node, dict.fromkeys(("pass", "warn", "fail"), 0))
            of_node[one.verdict] += 1
    if not counts:
        return []
    width = max(map(len, (*counts, "NODE")))
    rows = [
        f"{node:<{width}}  " + "  ".join(f"{count:>4}" for count in counts[node].values()) for node in sorted(counts)
    ]
    return [f"{'NODE':<{width}}  PASS  WARN  FAIL", *rows]
