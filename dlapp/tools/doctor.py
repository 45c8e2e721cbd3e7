"""dlapp-doctor: whether what dlapp needs is there, one line for each assumption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_FAILED
from dlapp.tools.common import command, json_option, note, print_json, run, say

if TYPE_CHECKING:
    from dlapp.doctor.findings import Finding

_SUBJECT_WIDTH = 24


@command("dlapp-doctor", example="dlapp-doctor --cluster yarn")
@click.option("--cluster", metavar="NAME", help="Check this engine instead of the configured one.")
@click.option("--defaults", is_flag=True, help="Also print the keys that have their default value.")
@click.option("--node", is_flag=True, help="Also check from a node of the cluster, in a container.")
@json_option("Print the findings as JSON.")
def doctor(cluster: str | None, defaults: bool, node: bool, as_json: bool) -> int:
    """Check what dlapp needs here: configuration, engine, storage, GPUs, Docker.

    It prints a line for each check: pass, warn or fail, with the repair. The exit code is 1 if a check failed.
    """
    from dlapp.doctor.run import diagnosis

    findings = diagnosis(cluster=cluster, defaults=defaults, node=node)
    shown = list(findings if as_json else _said(findings))
    count = {verdict: sum(one.verdict == verdict for one in shown) for verdict in ("pass", "warn", "fail")}
    if as_json:
        print_json({"findings": [one._asdict() for one in shown], "count": count})
    else:
        note(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return EXIT_FAILED if count["fail"] else 0


def _said(findings: Iterable[Finding]) -> Iterator[Finding]:
    for one in findings:
        say(line_of(one))
        yield one


def line_of(finding: Finding) -> str:
    """``warn  hdfs.home    /user/tony is not there; make it …``"""
    repair = f"; {finding.repair}" if finding.repair else ""
    return f"{finding.verdict}  {finding.subject:<{_SUBJECT_WIDTH}}  {finding.found}{repair}"


def main() -> None:
    """The console script."""
    run(doctor)


if __name__ == "__main__":
    main()
