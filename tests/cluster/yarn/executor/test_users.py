"""Applications of several users on NodeManagers with the LinuxContainerExecutor: each runs as its own user, and leaves
nothing behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, BOB, CAROL, DAVE, USERS
from tests.cluster.yarn.on_yarn import until
from tests.services.executor.linux_executor import LinuxExecutor
from tests.services.hadoop import NODES, Hadoop

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as other users")]
RUNS = """
umask 022
{{ id -u; pwd; }} >{place}/$1.new && mv {place}/$1.new {place}/$1
until [ -e {place}/go ]; do sleep 0.05; done
"""
"""The beginning of a script that waits; its place tells its user's number and its directory."""


def processes_of(user: str) -> list[str]:
    """Return the commands of the processes of a user of the nodes."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == USERS[user]:
                found.append(Path(f"/proc/{name}/cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return found


def kept_on_nodes(hadoop: Hadoop, user: str) -> list[Path]:
    """Return what applications of a user still have on the nodes' disks."""
    return [
        path for host in NODES.values() for path in hadoop.directory.glob(f"local-{host}/usercache/{user}/appcache/*")
    ]


def test_two_users_run_under_their_own_numbers_and_cannot_read_each_others_files(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    clients, applications = {}, {}
    for user in ALICE, BOB:
        script = RUNS.format(place=place).replace("$1", f"{user}.at") + (
            f"for one in {place}/{ALICE}.at {place}/{BOB}.at; do\n"
            '  directory=$(tail -n 1 "$one")\n'
            f'  cat "$directory"/../../container_tokens && ls "$directory" && echo "$one" >>{place}/{user}.reads\n'
            "done >/dev/null\n"
            "mkdir -p out/deep; echo result >out/deep/file; chmod 600 out/deep/file; echo hello of $(id -u)\n"
        )
        to_hdfs = {"output_path": "out", "hdfs": f"/user/{user}/out"}
        file = properties(place / user, script, name=user, application={"username": user}, to_hdfs=to_hdfs)
        clients[user] = client_of(user)
        applications[user] = clients[user].submit(str(file))
    until(lambda: all((place / f"{user}.at").exists() for user in (ALICE, BOB)))
    (place / "go").touch()
    for user in ALICE, BOB:
        end = clients[user].wait(applications[user], timeout_s=120)
        assert end.cause is Cause.SUCCEEDED, end.diagnostics
        uid = (place / f"{user}.at").read_text().split()[0]
        assert int(uid) == USERS[user]
        assert (place / f"{user}.reads").read_text().split() == [str(place / f"{user}.at")]
        listed = hadoop_with_users.get(
            f"{hadoop_with_users.hdfs_url}/webhdfs/v1/user/{user}/out/deep?op=LISTSTATUS&user.name={user}"
        )
        (output,) = listed["FileStatuses"]["FileStatus"]
        assert (output["owner"], output["length"]) == (user, len("result\n"))
        text = "".join(str(line) for line in clients[user].logs(applications[user]))
        assert f"hello of {USERS[user]}" in text
    until(lambda: not any(kept_on_nodes(hadoop_with_users, user) for user in (ALICE, BOB)))
    assert not any(processes_of(user) for user in (ALICE, BOB))


def test_a_killed_application_leaves_no_process_of_its_user_also_in_other_sessions(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    script = "setsid sleep 3000 &\nnohup setsid setsid sleep 3001 >/dev/null &\n" + RUNS.format(place=place).replace(
        "$1", "at"
    )
    client = client_of(ALICE)
    application = client.submit(str(properties(place / ALICE, script, application={"username": ALICE})))
    until((place / "at").exists)
    assert any("sleep 3001" in process for process in processes_of(ALICE))
    client.kill(application)
    assert client.wait(application, timeout_s=120).cause is Cause.KILLED
    until(lambda: not processes_of(ALICE))
    until(lambda: not kept_on_nodes(hadoop_with_users, ALICE))


def test_memory_kills_and_lost_nodes_are_distinguished_from_failed_programs(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    client = client_of(BOB)
    hungry = f'exec {place}/python3 -c "x = bytearray(900 << 20); print(len(x)); import time; time.sleep(300)"'
    file = properties(place / "hungry", hungry, application={"username": BOB}, resources={"memory": "256m"})
    end = client.wait(client.submit(str(file)), timeout_s=120)
    assert end.cause is Cause.FAILED
    assert re.search(r"was ended for using too much memory: .* MB of .*; raise memory", end.diagnostics), (
        end.diagnostics
    )
    script = f"echo x >>{place}/runs\n" + RUNS.format(place=place).replace("$1", "at")
    application = client.submit(str(properties(place / "lost", script, application={"username": BOB})))
    until((place / "at").exists)
    directory = (place / "at").read_text().split()[1]
    # The ApplicationMaster may be on the same node: then its next attempt continues.
    part = next(part for part, host in NODES.items() if f"local-{host}/" in directory)
    hadoop_with_users.kill_part(part)
    try:
        until(lambda: len((place / "runs").read_text().split()) == 2, 240)
    finally:
        hadoop_with_users.start_part(part)
    (place / "go").touch()
    end = client.wait(application, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics


def test_a_user_without_an_account_on_the_nodes_gets_an_error(
    client_of: Callable[[str], Client], executor: LinuxExecutor, hadoop_with_users: Hadoop, place: Path
) -> None:
    client = client_of(DAVE)
    end = client.wait(
        client.submit(str(properties(place / DAVE, "true", application={"username": DAVE}))), timeout_s=120
    )
    reason = "container-executor failed (exit code 255): User {} not found"
    assert end.cause is Cause.FAILED
    assert end.diagnostics == f"no node could start the ApplicationMaster: {reason.format(DAVE)}"
    # An account that is removed later: the ApplicationMaster runs on, containers do not start.
    client = client_of(CAROL)
    script = RUNS.format(place=place).replace("$1", "at") + "exit 3"
    file = properties(place / CAROL, script, application={"username": CAROL}, resources={"retries": 1})
    application = client.submit(str(file))
    until((place / "at").exists)
    with executor.without_account(hadoop_with_users.directory, CAROL):
        (place / "go").touch()
        end = client.wait(application, timeout_s=240)
    assert end.cause is Cause.FAILED
    message = r"for reasons other than its program, .* could not be started on 127\.0\.1\.[12]: "
    message += re.escape(reason.format(CAROL))
    assert re.search(message, end.diagnostics), end.diagnostics


def test_a_node_that_cannot_start_containers_uses_no_retry(
    client_of: Callable[[str], Client], executor: LinuxExecutor, hadoop_with_users: Hadoop, place: Path
) -> None:
    client = client_of(ALICE)
    script = f"echo x >>{place}/runs\n[ ! -e {place}/go ] || exit 0\n" + RUNS.format(place=place).replace("$1", "at")
    file = properties(place / "w", f"{script}exit 3", application={"username": ALICE}, resources={"retries": 1})
    application = client.submit(str(file))
    until((place / "at").exists)
    # With the GPU plug-in the NodeManager calls container-executor for the container's cgroup first, and on a node that
    # has not seen the application for the localizer of its files before that.
    refused = "ResourceHandlerChain.preStart() failed!", " startLocalizer is : 24"
    configurations = [executor.configuration(hadoop_with_users.directory, part) for part in NODES]
    assert not any(item in hadoop_with_users.log(part) for part in NODES for item in refused)
    try:
        for configuration in configurations:
            configuration.chmod(0o664)
        (place / "go").touch()
        until(lambda: any(item in hadoop_with_users.log(part) for part in NODES for item in refused))
    finally:
        for configuration in configurations:
            configuration.chmod(0o644)
    end = client.wait(application, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    # The only retry was that of the program.
    assert len((place / "runs").read_text().split()) == 2
