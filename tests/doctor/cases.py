"""Cases in which dlapp-doctor and an application agree: a fault that is really there, its finding, and what an
application does with it.

Each test module on real servers has a list of cases; `tests.doctor.test_coverage` compares them with the program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dlapp.doctor.findings import FAIL, WARN
from tests.applications import BIN, properties, run, status, wait_for

SUCCEEDS, FAILS, WAITS = "succeeds", "fails", "waits"
"""Ends of an application: refused ones fail, too; one that waits does not start while the fault is there."""
END_S = 240.0


class Run(NamedTuple):
    """An application, and its end.

    Args:
        end: `SUCCEEDS`, `FAILS` or `WAITS`.
        common: what its message and the finding both have, a pattern; empty: it succeeds.
        sections: keys of its properties file.
        script: its program.
    """

    end: str
    common: str = ""
    sections: Mapping[str, Mapping[str, object]] = {}
    script: str = "true"


class Case(NamedTuple):
    """One fault.

    Args:
        name: of the test.
        finding: verdict and subject, without the ``node.`` of a check on a node.
        bring: brings the fault about, for the time of the block that it returns, if any.
        runs: applications; those of a finding that is a failure do not all succeed.
        on_node: the finding is that of a check in a container (``dlapp-doctor --node``).
        also: subjects of the failures that follow from the same fault.
    """

    name: str
    finding: tuple[str, str]
    bring: Callable[[Any], AbstractContextManager[object] | None]
    runs: tuple[Run, ...] = (Run(SUCCEEDS),)
    on_node: bool = False
    also: tuple[str, ...] = ()


class Site:
    """The machine of a test: its directory and environment, and what the commands run within.

    Args:
        directory: of the test.
        monkeypatch: sets the variables of the commands.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.monkeypatch = directory, monkeypatch
        self.within: list[str] = []

    def set(self, **keys: object) -> None:
        """Set configuration keys; ``__`` stands for the dot in a name."""
        for name, text in keys.items():
            self.monkeypatch.setenv(f"DLAPP_{name.upper().replace('__', '_')}", str(text))

    def findings(self, *, on_node: bool = False) -> list[dict[str, str]]:
        """Return what dlapp-doctor prints."""
        words = ["dlapp-doctor", "--json", *(["--node"] if on_node else [])]
        code, out, err = self._command(*words)
        assert code in (0, 1), err
        found: list[dict[str, str]] = json.loads(out)["findings"]
        assert code == any(finding["verdict"] == FAIL for finding in found)
        return found

    def end_of(self, one: Run, name: str) -> tuple[str, str]:
        """Run an application; return its end, and its message."""
        file = properties(self.directory, one.script, name=name, **one.sections)
        if one.end != WAITS:
            code, out, err = self._command("dlapp-launcher", "--wait", str(file))
            return (FAILS if code else SUCCEEDS), out + err
        code, out, err = self._command("dlapp-launcher", str(file))
        assert code == 0, err
        application = next(line.partition(" = ")[2] for line in out.splitlines() if line.startswith("DL App ID"))

        def waits() -> str | None:
            now = status(application)
            assert now["state"] not in ("FINISHED", "FAILED", "KILLED"), now
            text = json.dumps(now, ensure_ascii=False)
            return text if re.search(one.common, text) else None

        try:
            return WAITS, wait_for(f"it waits for {one.common}", waits, END_S)
        finally:
            run("dlapp-kill", application)

    def _command(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self.within, BIN / words[0], *words[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=END_S,
            env=dict(os.environ),
        )
        return done.returncode, done.stdout, done.stderr


def check(case: Case, site: Any) -> None:
    """Bring a fault about; compare the finding of dlapp-doctor with the ends of its applications."""
    verdict, subject = case.finding
    with case.bring(site) or nullcontext():
        found = site.findings(on_node=case.on_node)
        name = f"node.{subject}" if case.on_node and not subject.startswith("node") else subject
        texts = [
            f"{finding['found']}; {finding['repair']}"
            for finding in found
            if (finding["verdict"], finding["subject"]) == (verdict, name)
        ]
        assert texts, [finding for finding in found if finding["verdict"] != "pass"]
        # What else the machine lacks makes no application fail.
        others = [
            finding for finding in found if finding["verdict"] == FAIL and finding["subject"] not in (name, *case.also)
        ]
        assert not others, others
        for number, one in enumerate(case.runs):
            end, message = site.end_of(one, f"app{number}")
            assert end == one.end, message
            if one.common:
                assert re.search(one.common, message), message
                assert any(re.search(one.common, text) for text in texts), texts
    if verdict == FAIL:
        assert any(run.end != SUCCEEDS for run in case.runs)
    else:
        assert verdict == WARN
        assert any(run.end == SUCCEEDS for run in case.runs)


def parametrized(cases: list[Case]) -> list[Any]:
    """Return a parameter for each case, with its name."""
    return [pytest.param(case, id=case.name) for case in cases]
