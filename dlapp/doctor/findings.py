"""Findings of `dlapp-doctor`: for each requirement whether it is met, and the repair if not.

Each part of the installation has a module with a list of checks; `dlapp.doctor.run` joins the lists. A check is a
function that yields findings. It stops after a finding on which its further ones depend: ten lines about one dead
server would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.locations import HdfsPlace
    from dlapp.values.launch_spec import LedgerSettings

PASS, WARN, FAIL = "pass", "warn", "fail"
MAX_CLOCK_DIFFERENCE_S = 30.0
"""Maximum difference of two clocks. The times of two machines are compared by minutes at most; Kerberos fails at five
minutes."""
REQUEST_TIMEOUT_S = 10.0
"""Time limit of the doctor for one answer of a server."""


class Finding(NamedTuple):
    """Result of one check.

    Args:
        verdict: `PASS`, `WARN` (it works, or may work; inspect it) or `FAIL` (something does not work).
        subject: name of the requirement, one or two words with dots: ``hdfs.write``.
        found: observation, one line.
        repair: what to do; empty for a pass.
        node: the node of the cluster, if all of them were checked; empty for this machine, or some node.
    """

    verdict: str
    subject: str
    found: str
    repair: str = ""
    node: str = ""


class CheckContext(NamedTuple):
    """Context of the checks.

    Args:
        on_node: whether it runs in a container on a node of a cluster; otherwise where applications are submitted.
        hdfs: the cluster's default file system; None if there is none, or it is unknown.
        ledger: location of the GPU ledger; None for that of ``config``.
        nvml: calls NVML for all checks, so that a hanging driver is waited for once; None: each has its own.
    """

    config: Config
    on_node: bool = False
    hdfs: HdfsPlace | None = None
    ledger: LedgerSettings | None = None
    nvml: NvmlProcess | None = None


class Check(NamedTuple):
    """One check; an exception becomes a finding about ``subject``, too."""

    subject: str
    run: Callable[[], Iterable[Finding]]


def passed(subject: str, found: str) -> Finding:
    """Return the finding that a requirement is met."""
    return Finding(PASS, subject, found)


def warned(subject: str, found: str, repair: str) -> Finding:
    """Return the finding that a requirement may be met."""
    return Finding(WARN, subject, found, repair)


def failed(subject: str, found: str, repair: str = "") -> Finding:
    """Return the finding that a requirement is not met; without ``repair`` the message itself has what to do."""
    return Finding(FAIL, subject, found, repair)


def clock_finding(subject: str, whose: str, theirs_s: float, began_s: float, ended_s: float) -> Finding:
    """Return whether a server's clock agrees with this machine's.

    Args:
        subject: the subject of the finding.
        whose: name of the server.
        theirs_s: time of the other clock, read between two times of this one [s since 1970].
        began_s, ended_s: those moments [s since 1970].
    """
    apart_s = max(began_s - theirs_s, theirs_s - ended_s, 0.0)
    if apart_s > MAX_CLOCK_DIFFERENCE_S:
        return warned(subject, f"{whose} clock is {apart_s:.0f} s from this machine's", "run NTP on both")
    return passed(subject, f"{whose} clock is within {apart_s + ended_s - began_s:.1f} s of this machine's")


def run_checks(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield all findings, each as soon as it is known."""
    for check in checks:
        try:
            yield from check.run()
        except DlappError as error:
            yield failed(check.subject, " ".join(str(error).split("\n")))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            yield failed(check.subject, f"{where}{error.strerror or error}")
        except Exception as error:  # the other checks are still useful
            yield failed(check.subject, f"{type(error).__name__}: {error}", "this is an internal error: report it")
