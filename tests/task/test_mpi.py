"""Tasks of framework=mpi: requests of mpirun in the head, and its commands in another container."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.task.link.am_link import AmLink
from dlapp.task.mpi.files import MpiFiles
from dlapp.task.mpi.launches import MAX_REQUEST_BYTES, MemberLaunches
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault, LaunchState, MpiLaunch, MpiWork, Stop
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import Framework
from tests.task.fake_am import FakeAm, workspace_archive

ASK = 'sh "$DLAPP_DIR/mpi/agent.sh" dlapp-container-1'
WORK = MpiWork(head=0, slots={"worker": 2})


def roster(generation: int = 0) -> Roster:
    members = (
        Member(role="worker", role_index=n, index=n, host="a", address="127.0.0.1", ports=(20_001 + n, 20_005 + n))
        for n in range(2)
    )
    return Roster(generation=generation, version=0, members=tuple(members))


def started(place: Path, script: str, **assignment: Any) -> FakeAm:
    """Start the task of one container, whose payload may run at once."""
    fields = workspace_archive(place, {"run.sh": script, "sub/file": "text"})
    given: dict[str, Any] = {"has_roster": True, "ports": 2, "mpi": WORK, "framework": Framework.MPI, "in_gang": True}
    am = FakeAm(place / "containers", **(fields | given | assignment))
    am.roster = roster()
    am.__enter__()
    am.order(roster=1)
    am.start(docker=DockerSettings("unix:///nowhere", "none", lock_dir=str(place / "locks")))
    return am


@pytest.fixture
def head(place: Path) -> Iterator[Any]:
    """Start the head's task with a script."""
    started_ones: list[FakeAm] = []

    def start(script: str, **assignment: Any) -> FakeAm:
        started_ones.append(started(place, script, **assignment))
        return started_ones[-1]

    yield start
    for item in started_ones:
        item.__exit__(None, None, None)


@pytest.fixture
def member(head: Any) -> FakeAm:
    """Start the task of the other container."""
    am: FakeAm = head("echo not run", index=1, role_index=1, total=2)
    am.wait_until(lambda: "running" in am.log())
    return am


def launches(am: FakeAm) -> tuple[MpiLaunch, ...]:
    last = max(am.reports, key=lambda report: report.number, default=None)
    return last.launches if last is not None else ()


def states(am: FakeAm) -> tuple[LaunchState, ...]:
    return max(am.reports, key=lambda report: report.number).launch_states


# ---- the head ----


def test_the_agent_waits_for_the_end_of_its_remote_command(head: Any) -> None:
    am = head(f"cd sub; {ASK} orted --of 'head' ; echo $?")
    am.wait_until(lambda: bool(launches(am)))
    (asked,) = launches(am)
    assert asked == MpiLaunch(number=1, index=1, command="orted --of head", directory="sub")
    am.order(launch_states=(LaunchState(number=1),))
    am.wait_until(lambda: launches(am) != (asked,))
    assert launches(am) == (MpiLaunch(number=1, index=1, command=""),)
    am.order(launch_states=(LaunchState(number=1, status=7),))
    am.result()
    assert am.printed() == b"7\n"
    assert "dlapp: the daemon of container 1 ended with exit code 7" in (am.home / "stderr").read_text()
    assert launches(am) == ()


def test_requests_at_the_same_time_get_each_its_own_answer(head: Any) -> None:
    am = head(f"for n in 1 2 3; do ({ASK} $n; echo $n $?) & done; wait")
    am.wait_until(lambda: len(launches(am)) == 3)
    ends = {launch.number: int(launch.command) + 10 for launch in launches(am)}
    am.order(launch_states=tuple(LaunchState(number=number, status=status) for number, status in ends.items()))
    am.result()
    assert sorted(am.printed().decode().splitlines()) == ["1 11", "2 12", "3 13"]


def test_a_command_for_the_head_itself_runs_there_with_the_variables_of_a_daemon(head: Any) -> None:
    am = head(
        "sh \"$DLAPP_DIR/mpi/agent.sh\" dlapp-container-0 'echo $OMPI_MCA_btl_tcp_port_min_v4' && "
        "echo ${OMPI_MCA_btl_tcp_port_min_v4-none}"
    )
    assert am.result().fault is Fault.NONE
    assert am.printed() == b"20001\nnone\n"
    assert all(not report.launches for report in am.reports)


@pytest.mark.parametrize("container", [0, 1])
def test_a_later_open_mpi_is_refused_by_name(head: Any, container: int) -> None:
    am = head(
        f'sh "$DLAPP_DIR/mpi/agent.sh" dlapp-container-{container} "PREFIX=x; /usr/bin/prted --daemonize"; echo $?'
    )
    am.result()
    assert am.printed() == b"255\n"
    assert "needs Open MPI 4" in (am.home / "stderr").read_text()


@pytest.mark.proves("mpi-answers")
@pytest.mark.parametrize(
    ("request_text", "why"),
    [
        ("printf 'localhost\\n.\\nrm\\n' >$R", "no container of this application"),
        ("printf 'dlapp-container-1\\n.\\n' >$R", "a line each"),
        ("printf 'dlapp-container-1\\n.\\na\\nb\\n' >$R", "a line each"),
        ("printf 'dlapp-container-1\\n.\\n \\n' >$R", "a line each"),
        ("printf 'dlapp-container-1\\n.\\n\\377\\n' >$R", "decode"),
        (f"head -c {MAX_REQUEST_BYTES + 1} /dev/zero >$R", "bytes"),
        ("ln -s /etc/passwd $R", "symbolic link"),
        ("mkfifo $R", "not a regular file"),
        (":", "No such file"),
    ],
)
def test_an_invalid_request_is_refused_and_starts_no_program(head: Any, request_text: str, why: str) -> None:
    am = head(
        'R=$DLAPP_DIR/mpi/request.77; mkfifo "$DLAPP_DIR/mpi/answer.77"; exec 3<>"$DLAPP_DIR/mpi/answer.77"\n'
        f'{request_text}\necho 77 >"$DLAPP_DIR/mpi/requests"; read -r answer <&3; echo "$answer"'
    )
    assert am.result().fault is Fault.NONE
    assert am.printed().startswith(b"255 the request is refused: ")
    assert why in am.printed().decode()
    assert all(not report.launches for report in am.reports)


def test_lines_that_are_no_numbers_are_passed_over(head: Any) -> None:
    am = head(
        'cd "$DLAPP_DIR/mpi"; printf "../../x\\n-1\\n\\n99999999999\\n\\303\\251\\n" >requests\n'
        f"head -c 200000 /dev/zero >requests; echo >requests; cd; {ASK} last; echo $?"
    )
    am.wait_until(lambda: bool(launches(am)))
    assert [launch.command for launch in launches(am)] == ["last"]
    am.order(launch_states=(LaunchState(number=1, status=0),))
    am.result()
    assert am.printed() == b"0\n"


def test_an_agent_that_has_ended_is_no_reason_to_wait(head: Any) -> None:
    until = "until [ -e {0} ]; do sleep 0.02; done"
    am = head(f"{ASK} orted & {until.format('kill')}; kill -KILL $!; echo killed; {until.format('go')}")
    am.wait_until(lambda: bool(launches(am)))
    (am.home / "workspace/kill").touch()
    am.wait_until(lambda: bool(am.printed()))
    am.order(launch_states=(LaunchState(number=1, status=0),))
    am.wait_until(lambda: not launches(am))
    (am.home / "workspace/go").touch()
    assert am.result().fault is Fault.NONE


@pytest.mark.proves("mpi-requests")
def test_the_directory_of_requests_is_private(head: Any) -> None:
    am = head("until [ -e go ]; do sleep 0.02; done; env")
    am.wait_until(lambda: (am.home / "run/mpi/requests").exists())
    for name in ("run", "run/mpi"):
        assert stat.S_IMODE((am.home / name).stat().st_mode) == 0o700
    for path in (am.home / "run/mpi").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    (am.home / "workspace/go").touch()
    am.result()
    token = am.secret
    assert token not in am.printed().decode()


def test_variables_set_by_the_user_are_kept(place: Path) -> None:
    fields = workspace_archive(place, {"run.sh": "echo $OMPI_MCA_plm_rsh_agent; cat $DLAPP_DIR/mpi/node.sh"})
    with FakeAm(place / "containers", has_roster=True, ports=2, mpi=WORK, framework=Framework.MPI, **fields) as am:
        am.roster = roster()
        am.order(roster=1)
        mine = {"OMPI_MCA_plm_rsh_agent": "mine", "OMPI_MCA_btl_tcp_if_include": "mine"}
        am.start(env=mine, docker=DockerSettings("unix:///nowhere", "none", lock_dir=str(place / "locks")))
        am.result()
        first, *rest = am.printed().decode().splitlines()
    assert first == "mine"
    assert not any("btl_tcp_if_include" in line for line in rest)
    assert any("oob_tcp_if_include" in line for line in rest)


# ---- another container ----


def test_a_member_runs_commands_instead_of_the_program_until_it_is_ended(member: FakeAm) -> None:
    am = member
    text = "echo $OMPI_MCA_btl_tcp_port_min_v4 $CONTAINER_INDEX; pwd; exit 5"
    member.order(launches=(MpiLaunch(number=3, index=1, command=text, directory="sub"),))
    am.wait_until(lambda: states(am) == (LaunchState(number=3, status=5),))
    assert am.printed().decode().splitlines() == ["20002 1", str(am.home / "workspace/sub")]
    am.stop(Stop.SOFT)
    result = am.result()
    assert (result.fault, result.exit_code) == (Fault.STOPPED, 0)


def test_a_repeated_launch_order_starts_once(member: FakeAm) -> None:
    am = member
    one = MpiLaunch(number=1, index=1, command="echo once")
    am.order(launches=(one,))
    am.wait_until(lambda: states(am) == (LaunchState(number=1, status=0),))
    am.order(launches=())
    am.wait_until(lambda: states(am) == ())
    am.order(launches=(one, MpiLaunch(number=2, index=1, command="echo twice")))
    am.wait_until(lambda: states(am) == (LaunchState(number=1, status=0), LaunchState(number=2, status=0)))
    assert am.printed() == b"once\ntwice\n"


def test_ended_launches_are_forgotten_when_the_head_has_forgotten_them(tmp_path: Path) -> None:
    class Link:
        """A link to an ApplicationMaster that orders launches."""

        def __init__(self) -> None:
            self.ordered: tuple[MpiLaunch, ...] = ()
            self.states: tuple[LaunchState, ...] = ()

        def launches(self, generation: int) -> tuple[tuple[MpiLaunch, ...], tuple[LaunchState, ...]]:
            return self.ordered, ()

        def report_fields(self, *, launch_states: tuple[LaunchState, ...]) -> None:
            self.states = launch_states

    (tmp_path / "run").mkdir(mode=0o700)
    files, link = MpiFiles(str(tmp_path / "run")), Link()
    member = MemberLaunches(files, lambda _: None)
    before = states_alive()
    for number in range(1, 1001):
        link.ordered = (MpiLaunch(number=number, index=1, command="true"),)
        member.exchange(cast(AmLink, link), 0)
        os.write(member.fileno(), f"{number} 0\n".encode())
        member.exchange(cast(AmLink, link), 0)
        assert link.states == (LaunchState(number=number, status=0),)
        link.ordered = ()
        member.exchange(cast(AmLink, link), 0)
    assert states_alive() - before < 10
    files.close()


def states_alive() -> int:
    gc.collect()
    return sum(isinstance(item, LaunchState) for item in gc.get_objects())


def test_a_launch_that_cannot_be_started_has_failed(member: FakeAm) -> None:
    am = member
    am.order(
        launches=(
            MpiLaunch(number=1, index=1, command=""),
            MpiLaunch(number=2, index=1, command="echo a\necho b"),
            MpiLaunch(number=3, index=1, command="true", directory="nowhere"),
        )
    )
    am.wait_until(lambda: len(states(am)) == 3 and states(am)[2].status is not None)
    assert [state.status for state in states(am)[:2]] == [255, 255]
    assert states(am)[2].status != 0
    assert am.printed() == b""


@pytest.mark.proves("mpi-answers")
def test_false_end_reports_affect_only_the_payloads_own_launches(member: FakeAm) -> None:
    am = member
    lies = "printf '9 0\\n1 x\\n1 99999\\n\\n' >\"$DLAPP_DIR/mpi/ended\"; exec sleep 600"
    am.order(launches=(MpiLaunch(number=1, index=1, command=lies),))
    am.wait_until(lambda: states(am) == (LaunchState(number=1, status=255),))


def test_a_kill_ends_programs_started_by_mpirun(member: FakeAm) -> None:
    am = member
    am.order(launches=(MpiLaunch(number=1, index=1, command="echo $$; exec sleep 600"),))
    am.wait_until(lambda: states(am) == (LaunchState(number=1),) and bool(am.printed()))
    am.stop(Stop.NOW)
    assert am.result().fault is Fault.STOPPED
    assert not any(
        "sleep\0600" in read(pid) for pid in filter(str.isdecimal, os.listdir("/proc")) if belongs_to(pid, am)
    )


def read(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_text()
    except OSError:
        return ""


def belongs_to(pid: str, am: FakeAm) -> bool:
    try:
        return str(am.home).encode() in Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return False


def test_the_result_of_a_head_whose_mpirun_was_killed_has_no_launches_left(head: Any) -> None:
    am = head(f"{ASK} orted & sleep 600", kill_grace_s=0.1)
    am.wait_until(lambda: bool(launches(am)))
    am.order(stop=Stop.SOFT)
    am.result()
    assert launches(am) == ()
