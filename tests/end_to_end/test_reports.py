"""Test the pages of an application in a browser: by the proxy of a ResourceManager while it runs, and after its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.applications import launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.pages.rendering import check_page
from tests.services.http.browser import Browser, browser

__all__ = ["browser"]
END_S = 120.0


@pytest.mark.slow
def test_a_browser_shows_an_application_while_it_runs_and_its_report_afterwards(
    engine: Engine, browser: Browser, tmp_path: Path
) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    waits = [f"until [ -e {item} ]; do sleep 0.05; done" for item in (go, end)]
    script = "\n".join(["echo started", waits[0], "echo went on", waits[1], "echo no such thing >&2", "exit 3"])
    application = launch(properties(tmp_path, script, name="shown <b>here</b>"))
    wait_for("its start", lambda: "running 1 of 1" in status(application)["phase"], END_S)

    browser.open(status(application)["tracking_url"])
    browser.follow("nav a")
    assert browser.value("location.search") == "?still=1"
    for text in ("shown <b>here</b>", "running 1 of 1", "Timeline", "Containers"):
        assert text in browser.text()
    assert check_page(browser) >= 4

    browser.follow('a[href="?log=0.stdout"]')
    wait_for("what was printed", lambda: "started" in browser.text(), END_S)
    go.touch()
    wait_for("what was printed since, without a click", lambda: "went on" in browser.text(), END_S)
    browser.follow('a[href="?log=0.stderr"]')
    assert "nothing was printed so far" in browser.text()

    end.touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 1
    file = tmp_path / "report.html"
    done = run("dlapp-report", application, "-o", file)
    assert done.out == f"report of {application} : {file}\n"
    with engine.client() as client:
        submission = client.submission(application)
    browser.open(f"file://{file}")
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    recorded = (submission.workspace_digest, submission.versions["dlapp"], "user_shell_script=start.sh")
    assert recorded[0].startswith("sha256-")
    for text in ("exit code 3", "no such thing", "started", "went on", *recorded):
        assert text in browser.text()
    assert check_page(browser) >= 3


def test_on_one_machine_the_second_dashboard_line_leads_to_the_whole_report(tmp_path: Path) -> None:
    done = run("dlapp-launcher", "--wait", properties(tmp_path, "echo oh no >&2; exit 3"), timeout_s=END_S)
    (line,) = [line for line in done.out.splitlines() if "report.html" in line]
    path = Path(line[line.index("file://") + len("file://") :].strip())
    wait_for("the report", path.exists)
    assert path.stat().st_mode & 0o777 == 0o600
    left = path.read_text()
    assert "exit code 3" in left
    assert "oh no" in left
    asked = run("dlapp-report", "last", "-o", "-").out
    # The end on record is some milliseconds later than that which the ApplicationMaster knew.
    times = r"<footer.*?</footer>|<h2>Timeline.*?</section>|<dt>(elapsed|ended)</dt><dd>.*?</dd>|\b[\d.]+ s\b"
    assert re.sub(times, "", asked) == re.sub(times, "", left)
