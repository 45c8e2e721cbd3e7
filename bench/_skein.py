"""Skein, a Python client for YARN whose ApplicationMaster is Java, as a peer: fetched from PyPI once, then run.

It starts a driver of its own (a JVM), submits, and asks ten times a second until the application has ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from tests.services.hadoop import CACHE, library

# The last protobuf that reads what was generated for it.
PACKAGES = ("skein==0.8.2", "protobuf<3.21")
HELLO = """
import time
import skein

hello = skein.Service(instances=2, resources=skein.Resources(memory=128, vcores=1), script="echo hello")
with skein.Client() as client:
    application = client.submit(skein.ApplicationSpec(name="hello", services={"hello": hello}))
    while (report := client.application_report(application)).state not in ("FINISHED", "FAILED", "KILLED"):
        time.sleep(0.1)
    assert report.final_status == "SUCCEEDED", report
"""
YARN = """#!/bin/sh
# `yarn classpath --glob`, which Skein asks for: there is no installation of Hadoop here, only its jars.
printf '%s' '{configuration}'
for jar in {library}/*.jar; do printf ':%s' "$jar"; done
"""


class Missing(Exception):
    """It cannot be had; the message says why."""


class Skein:
    """A Skein that is ready to run.

    Args:
        root: a directory for what it needs beside itself.

    Raises:
        Missing: it could not be fetched.
    """

    def __init__(self, root: Path, configuration: Path, environment: dict[str, str]) -> None:
        self._python = _fetched()
        commands = root / "skein"
        commands.mkdir()
        (commands / "yarn").write_text(YARN.format(configuration=configuration, library=library()))
        (commands / "yarn").chmod(0o755)
        self._environment = environment | {"PATH": f"{commands}:{environment['PATH']}"}

    def hello(self) -> None:
        """Two containers that say hello, to their end."""
        self._run(HELLO)

    def _run(self, program: str) -> None:
        argv = [str(self._python), "-W", "ignore", "-c", program]
        done = subprocess.run(
            argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            raise SystemExit(f"Error: Skein failed: {done.stdout.decode(errors='replace')[-1000:]}")


def _fetched() -> Path:
    place = CACHE / "skein"
    python = place / "bin" / "python"
    stamp = place / "installed"
    if not stamp.exists():
        print(f"fetching {PACKAGES[0]} into {place}", file=sys.stderr, flush=True)
        for argv in (
            [sys.executable, "-m", "venv", str(place)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
        ):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"{PACKAGES[0]} cannot be installed: {(done.stdout + done.stderr).strip()[-300:]}")
        with contextlib.suppress(OSError):
            stamp.touch()
    return python
