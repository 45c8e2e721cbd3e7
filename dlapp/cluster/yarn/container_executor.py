"""Failures of the program that starts containers for a NodeManager with the LinuxContainerExecutor.

That program, ``container-executor``, becomes the container's user. If it fails, YARN reports its exit code as that of
the container. Its output, which YARN appends to the diagnostics, shows that the container's command never ran:

    Exception from container-launch.                    Application application_… initialization failed
    Container id: container_…                           (exitCode=255) with output: main : command provided 0
    Exit code: 35                                       main : run as user is alice
    Exception message: Launch container failed          main : requested yarn user is alice
    Shell error output: Could not create container dirs User alice not found
    Shell output: main : command provided 1
    main : run as user is alice
    …                                                   (before it fetches files: exit status -1000)
    Launching container...        <- only if it reached the command

Source: main.c, util.h and container-executor.c of the NodeManager, Hadoop 2.10 to 3.5; LinuxContainerExecutor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

EXIT_CODES: Mapping[int, str] = {
    5: "it cannot read the NodeManager's files",
    6: "it cannot become the container's user",
    7: "it cannot run the container's script",
    18: "it is out of memory",
    20: "it cannot create the user's directories in yarn.nodemanager.local-dirs",
    22: "the program needs root as its owner, the NodeManager's group, and mode 6050",
    24: "container-executor.cfg is invalid, or others than root may write it",
    25: "it cannot create a session",
    26: "it cannot write the pid file",
    27: "it cannot put the container into its cgroup",
    28: "traffic control failed",
    29: "Docker cannot start the container",
    30: "it cannot read the file for Docker",
    31: "it cannot read the file for Docker",
    32: "a feature is disabled in container-executor.cfg",
    33: "it cannot copy the container's script",
    34: "it cannot copy the container's credentials",
    35: "it cannot create the container's directories",
    36: "it cannot create the container's log directories",
    37: "it cannot create the container's directories for temporary files",
    38: "its arguments are incomplete",
    39: "container-executor.cfg does not allow the request to Docker",
    40: "container-executor.cfg does not allow the Docker image",
    43: "the container's id is invalid",
    44: "Docker cannot run the command",
    255: "see the log of the NodeManager",
}
"""Its exit codes, with what they mean if it wrote no message. No task of dlapp ends with one of them by itself."""
_IN_CFG = "of container-executor.cfg on the nodes"
REPAIRS: Mapping[str, str] = {
    r"User \S+ not found": (
        "give the submitter an account on each node, or set nonsecure-mode.limit-users and nonsecure-mode.local-user"
    ),
    r"Requested user .* is (banned|not whitelisted)|below the minimum allowed|Running as root is not allowed": (
        f"see banned.users, min.user.id and allowed.system.users {_IN_CFG}"
    ),
    r"Can't create directory .* Permission denied": "remove directories of another user below usercache on the nodes",
    r"container-executor failed \(exit code 2[24]\)|Linux Container Executor reached unrecoverable exception": (
        "correct owner and mode of container-executor and of container-executor.cfg, then restart the NodeManager"
    ),
    r"ResourceHandlerChain\.preStart\(\) failed": (
        f"see cgroups, and [gpu] and [cgroups] {_IN_CFG}: the log of the NodeManager has the reason"
    ),
}
"""What an operator does about a failure, by a pattern in its message: the table of docs/yarn.md."""
_BEGUN = "Launching container..."
_ERROR_FILE = "Error file: "
"""YARN names the file that the container's script writes before the command, if the script ran."""
_LOGS = re.compile(r"\bLast \d+ bytes of ")
"""Beginning of the container's own files."""
_CODE = re.compile(r"^Exit code: (\d+)$|initialization failed \(exitCode=(\d+)\) with output: ", re.MULTILINE)
_OUTPUT = re.compile(r"(?:^Shell output|with output): ?(.*?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r"^Shell error output: ?(.*?)(?:^Shell output: |\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_NO_REASON = re.compile(r"main : |Writing to tmp file |.*\.\.\.$|For more detailed output|\. Failing ")
"""Lines of the output about its progress."""
_MAX_REASON = 300


def launch_failure(diagnostics: str) -> str:
    """Return why container-executor failed before the container's command ran: ``container-executor failed (exit code
    35): …``; empty: it did not fail, or the diagnostics do not say so.

    Args:
        diagnostics: YARN's, of a container or an application.
    """
    diagnostics = _LOGS.split(diagnostics, maxsplit=1)[0]
    found = _CODE.search(diagnostics)
    if found is None or _BEGUN in diagnostics:
        return ""
    code, is_localizer = int(found[1] or found[2]), found[2] is not None
    output, error = _first(_OUTPUT, diagnostics, found), _first(_ERROR, diagnostics, found)
    # It writes no output if its own setup is wrong.
    is_silent = code in (22, 24) and _ERROR_FILE not in diagnostics[found.end() :]
    is_its_own = code in EXIT_CODES and ("main : " in output or is_silent)
    if not is_its_own and not is_localizer:
        return ""
    lines = [line.strip() for line in (*output.splitlines(), *error.splitlines())]
    reasons = [line for line in lines if line and not _NO_REASON.match(line)]
    reason = reasons[0] if reasons else EXIT_CODES.get(code, EXIT_CODES[255])
    return f"container-executor failed (exit code {code}): {reason[:_MAX_REASON]}"


def repair_of(message: str) -> str:
    """Return what an operator does about a failure of container-executor; empty: the message is of no known one."""
    return next((repair for pattern, repair in REPAIRS.items() if re.search(pattern, message)), "")


def _first(pattern: re.Pattern[str], text: str, after: re.Match[str]) -> str:
    found = pattern.search(text, after.start())
    return found[1] if found else ""
