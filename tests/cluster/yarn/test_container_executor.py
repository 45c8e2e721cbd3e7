"""Failures of container-executor, as YARN reports them: the node is to blame, and named with the reason."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from dlapp.cluster.yarn.am.exit_status import end_of
from dlapp.cluster.yarn.client.views import first_line
from dlapp.cluster.yarn.container_executor import EXIT_CODES, launch_failure, repair_of
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus
from dlapp.values.ids import ContainerId

ROOT = Path(__file__).resolve().parents[3]
ONE = ContainerId.from_text("container_1700000000000_0042_01_000002")
BEGIN = "main : command provided 1\nmain : run as user is alice\nmain : requested yarn user is alice\n"
STEPS = "Getting exit code file...\nCreating script paths...\n"
LOCALIZER = (
    "[2026-11-29 08:00:00.001]Application application_1700000000000_0042 initialization failed (exitCode={code}) with "
    "output: main : command provided 0\nmain : run as user is alice\nmain : requested yarn user is alice\n{reason}\n\n"
)


def launch(code: int, output: str, error: str = "") -> str:
    """Return YARN's diagnostics of a container whose container-executor ended so. Source: LinuxContainerExecutor."""
    shown = f"Shell error output: {error}\n" if error else ""
    has_begun = "Launching container..." in output
    file = " Error file: prelaunch.err.\nLast 4096 bytes of prelaunch.err :\n" if has_begun else ""
    return (
        f"[2026-11-29 08:00:00.001]Exception from container-launch.\nContainer id: {ONE}\nExit code: {code}\n"
        f"Exception message: Launch container failed\n{shown}Shell output: {output}\n\n"
        f"[2026-11-29 08:00:00.002]Container exited with a non-zero exit code {code}.{file}\n"
    )


def status(code: int, message: str) -> ContainerStatus:
    return ContainerStatus(container_id=ONE, stage=ContainerStage.ENDED, exit_status=code, diagnostics=message)


@pytest.mark.parametrize("code", EXIT_CODES)
def test_each_of_its_exit_codes_before_the_command_ran_blames_the_node_by_name(code: int) -> None:
    end = end_of(status(code, launch(code, BEGIN + STEPS)), "node7")
    assert end.node_fault
    assert end.diagnostics == (
        f"the container could not be started on node7: container-executor failed (exit code {code}): {EXIT_CODES[code]}"
    )


@pytest.mark.parametrize("code", [*EXIT_CODES, 1, 2, 137])
def test_the_same_exit_codes_of_a_command_that_ran_are_its_own(code: int) -> None:
    application = launch(code, f"{BEGIN}{STEPS}Writing pid file...\nLaunching container...\n{STEPS}")
    assert not launch_failure(application)
    assert not end_of(status(code, application), "node7").node_fault


@pytest.mark.parametrize("code", [1, 2, 3, 126, 127, 143])
def test_other_exit_codes_belong_to_the_command(code: int) -> None:
    assert not launch_failure(launch(code, BEGIN))


def test_with_another_executor_a_failed_command_has_no_output_of_container_executor() -> None:
    assert not launch_failure(launch(35, "").replace("Shell output: ", ""))


def default_executor(code: int, written: str = "") -> str:
    """Return YARN's diagnostics of a failed command with the DefaultContainerExecutor, and the end of its output."""
    return (
        f"[2026-11-29 08:00:00.001]Exception from container-launch.\nContainer id: {ONE}\nExit code: {code}\n\n"
        f"[2026-11-29 08:00:00.002]Container exited with a non-zero exit code {code}. Error file: prelaunch.err.\n"
        f"Last 4096 bytes of prelaunch.err :\nLast 4096 bytes of stderr :\n{written}\n\n"
    )


@pytest.mark.parametrize("code", EXIT_CODES)
def test_with_another_executor_the_same_exit_codes_are_the_commands(code: int) -> None:
    assert not launch_failure(default_executor(code))
    assert not end_of(status(code, default_executor(code)), "node7").node_fault


@pytest.mark.parametrize("written", ["Exit code: 22", "Exit code: 35\nShell output: main : command provided 1\n"])
def test_program_output_is_not_taken_for_a_container_executor_error(written: str) -> None:
    message = "[2026-11-29 08:00:00.001]Container killed on request.\nLast 4096 bytes of stderr :\n" + written
    assert not launch_failure(message)
    assert not launch_failure(default_executor(1, written))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (LOCALIZER.format(code=255, reason="User alice not found"), "255): User alice not found"),
        (
            LOCALIZER.format(code=255, reason="Can't create directory /d1/nm - Permission denied\nDid not create any"),
            "255): Can't create directory /d1/nm - Permission denied",
        ),
        (LOCALIZER.format(code=1, reason="java.io.IOException: no space"), "1): java.io.IOException: no space"),
        (
            launch(35, BEGIN + STEPS, "Could not create container dirs\nCould not create local files"),
            "35): Could not create container dirs",
        ),
        (
            launch(24, "", "File /etc/hadoop/x.cfg must be owned by root"),
            "24): File /etc/hadoop/x.cfg must be owned by",
        ),
        (
            launch(255, BEGIN + "Requested user alice is not whitelisted and has id 99,which is below the minimum"),
            "255): Requested user alice is not whitelisted",
        ),
    ],
)
def test_its_own_message_is_the_reason(message: str, reason: str) -> None:
    assert f"container-executor failed (exit code {reason}" in launch_failure(message)
    end = end_of(status(-1000, message), "node7")
    assert (end.node_fault, "on node7" in end.diagnostics) == (True, True)


def test_an_applicationmaster_that_container_executor_cannot_start_has_the_reason() -> None:
    message = (
        "Application application_1700000000000_0042 failed 2 times due to AM Container for "
        "appattempt_1700000000000_0042_000002 exited with  exitCode: -1000\nFailing this attempt.Diagnostics: "
        + LOCALIZER.format(code=255, reason="User dave not found")
        + "For more detailed output, check the application tracking page: http://rm:8088/x Then click on links to logs"
        " of each attempt.\n. Failing the application."
    )
    assert first_line(message) == (
        "no node could start the ApplicationMaster: container-executor failed (exit code 255): User dave not found"
    )


def test_a_container_that_its_nodemanager_could_not_launch_is_no_failure_of_the_program() -> None:
    end = end_of(status(-1, "[2026-11-29 08:00:00.001]ResourceHandlerChain.preStart() failed!"))
    assert end.node_fault
    assert end.diagnostics == (
        "the container could not be started by its NodeManager: ResourceHandlerChain.preStart() failed!"
    )


def rows_of_docs() -> list[tuple[str, str]]:
    """Return reason and repair of each row of the table of docs/yarn.md."""
    text = (ROOT / "docs" / "yarn.md").read_text(encoding="utf-8")
    table = text.partition("## The user of a container")[2].partition("|reason |repair|\n|---|---|\n")[2]
    rows = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines())
    return [(reason.strip(), repair.strip()) for _, reason, repair, _ in (row.split("|") for row in rows)]


@pytest.mark.parametrize(("reason", "repair"), rows_of_docs())
def test_each_documented_reason_has_a_repair_that_names_the_same_settings(reason: str, repair: str) -> None:
    """Each text in backquotes of a row has a repair, with the settings in backquotes of the same row."""
    texts = [text.replace("…", "a b") for text in re.findall("`(.+?)`", reason)]
    texts += [f"container-executor failed (exit code {code}): x" for code in re.findall(r"\b(2\d)\b", reason)]
    assert len(texts) >= 1
    for text in texts:
        repair_text = repair_of(text)
        assert all(name in repair_text for name in re.findall("`(.+?)`", repair)), (text, repair_text)
        assert repair_text


def test_a_failure_of_something_else_has_no_repair_of_the_executor() -> None:
    assert not repair_of("there is no /usr/bin/python3 on node7: set yarn.python")


@pytest.mark.parametrize("code", [-1, -1000])
def test_the_reason_why_a_nodemanager_started_no_application_master_is_shown(code: int) -> None:
    """The diagnostics of a ResourceManager 3.4.2 whose nodes have full disks."""
    message = (
        "Application application_1700000000000_0042 failed 2 times due to AM Container for "
        f"appattempt_1700000000000_0042_000002 exited with  exitCode: {code}\n"
        "Failing this attempt.Diagnostics: [2026-11-29 11:25:21.072]No space available in any of the local directories "
        "/disk on node7/10.0.0.7\nFor more detailed output, check the page: http://rm Then click on links.\n"
        ". Failing the application."
    )
    reason = "No space available in any of the local directories /disk on node7/10.0.0.7"
    assert first_line(message) == f"no node could start the ApplicationMaster: {reason}"
