"""Test the pages of an application in a browser: by the proxy of a ResourceManager while it runs, and after its end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.applications import launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.services.install import SEARCH, required

END_S = 120.0


def seen_in_chromium(url: str, profile: Path) -> str:
    """Return the document that a browser without a network but this machine's makes of a page."""
    chromium = shutil.which("chromium", path=SEARCH)
    if chromium is None:
        if required():
            pytest.fail("no chromium (package chromium)")
        pytest.skip("no chromium (package chromium)")
    argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    argv += [
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ]
    done = subprocess.run([*argv, "--dump-dom", url], capture_output=True, text=True, timeout=END_S)
    return done.stdout


@pytest.mark.slow
def test_a_browser_shows_an_application_while_it_runs_and_its_report_afterwards(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo started\nuntil [ -e {go} ]; do sleep 0.05; done\necho no such thing >&2\nexit 3"
    application = launch(properties(tmp_path, script, name="shown <b>here</b>"))
    wait_for("its start", lambda: "running 1 of 1" in status(application)["phase"], END_S)
    page = seen_in_chromium(status(application)["tracking_url"], tmp_path / "profile")
    assert "shown &lt;b&gt;here&lt;/b&gt;" in page
    assert "running 1 of 1" in page
    assert "<svg" in page
    go.touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 1
    file = tmp_path / "report.html"
    done = run("dlapp-report", application, "-o", file)
    assert done.out == f"report of {application} : {file}\n"
    report = seen_in_chromium(f"file://{file}", tmp_path / "profile")
    for text in ("exit code 3", "no such thing", "started", 'tabindex="0"', "<svg"):
        assert text in report
    assert "refresh" not in report


def test_on_one_machine_the_second_dashboard_line_leads_to_the_report(tmp_path: Path) -> None:
    done = run("dlapp-launcher", "--wait", properties(tmp_path, "exit 3"), timeout_s=END_S)
    (line,) = [line for line in done.out.splitlines() if "report.html" in line]
    path = line[line.index("file://") + len("file://") :].strip()
    wait_for("the report", Path(path).exists)
    assert "exit code 3" in Path(path).read_text()
