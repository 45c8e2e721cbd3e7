"""A cluster of its own as operators set one up: its ResourceManager remembers two applications that have ended, two of
its queues limit an application's lifetime, and its NodeManager recovers its containers.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.client import Client
from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.cluster.yarn.staging import StagingPaths
from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.system import clock
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, State
from tests.applications import Done, properties, run
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import RECOVERY, Hadoop, NoHadoop
from tests.tiers import FULL

NODE, LIFETIME_S = "nm1", 40
_ROOT = "yarn.scheduler.capacity.root"
SETTINGS = {
    "yarn-site.xml": {
        "yarn.resourcemanager.max-completed-applications": "2",
        "yarn.timeline-service.enabled": "false",
        "yarn.log.server.url": "",
        **RECOVERY,
    },
    "capacity-scheduler.xml": {
        f"{_ROOT}.queues": "default,research,brief",
        f"{_ROOT}.default.capacity": "40",
        f"{_ROOT}.research.capacity": "30",
        f"{_ROOT}.research.maximum-application-lifetime": str(LIFETIME_S),
        f"{_ROOT}.brief.capacity": "30",
        f"{_ROOT}.brief.maximum-capacity": "100",
        f"{_ROOT}.brief.user-limit-factor": "3",
        f"{_ROOT}.brief.default-application-lifetime": str(LIFETIME_S),
        f"{_ROOT}.brief.acl_submit_applications": "*",
    },
}


class Cluster(NamedTuple):
    """The cluster, a client of it, and a place for files of the tests."""

    hadoop: Hadoop
    client: Client
    options: dict[str, str]
    place: Path

    @property
    def files(self) -> HdfsStagingFiles:
        return HdfsStagingFiles(read_configuration(str(self.hadoop.configuration)).hdfs(Login(getpass.getuser())))

    def command(self, name: str, *words: object) -> Done:
        env = {f"DLAPP_{key.upper().replace('.', '_')}": value for key, value in self.options.items()}
        return run(name, *words, env={**env, "HADOOP_USER_NAME": getpass.getuser()})

    def submit(
        self, name: str, script: str, *, containers: int = 1, output: bool = False, **keys: str
    ) -> ApplicationId:
        to_hdfs = {"output_path": "output", "hdfs": f"{self.files.home}/results/{name}"}
        application = {"username": getpass.getuser(), "kill_grace": "10", **keys}
        resources = {"memory": "256m", "containers": containers}
        sections = {"application": application, "resources": resources} | ({"to_hdfs": to_hdfs} if output else {})
        return self.client.submit(str(properties(self.place, script, name=name, **sections))).application_id  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("short-memory")
    try:
        hadoop = Hadoop.start(place / "hadoop", parts=("nn", "dn", "rm", NODE), settings=SETTINGS)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": sys.executable,
        "local.state_dir": str(place / "state"),
    }
    with hadoop, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", getpass.getuser())
        with Client(load_config(options, environ={})) as client:

            def has_node() -> bool:
                with contextlib.suppress(DlappError):
                    return bool(client.engine.node_names())
                return False

            until(has_node, 120)
            yield Cluster(hadoop, client, options, place)


def shows(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Make a condition whose errors of dlapp mean not yet."""

    def holds() -> bool:
        with contextlib.suppress(DlappError):
            return condition()
        return False

    return holds


if FULL:

    @pytest.mark.hadoop
    def test_a_forgotten_application_is_shown_listed_and_removed_from_the_history(
        cluster: Cluster,
    ) -> None:
        client, files, go = cluster.client, cluster.files, cluster.place / "go"
        paths = StagingPaths(files.home)
        script = f"echo printed by $DLAPP_APP_ID; [ $1 != 0 ] || until [ -e {go} ]; do sleep 0.1; done; exit $1"
        first, *others = [cluster.submit(f"app{number}", script.replace("$1", str(number))) for number in range(4)]
        # The first that was submitted is the last to end.
        for one in others:
            client.wait(one, timeout_s=180)
        assert [str(item.application_id) for item in client.list()] == [str(item) for item in (first, *others)]
        assert str(first) in files.names(paths.all_staging), "it runs"
        go.touch()
        client.wait(first, timeout_s=240)
        with YarnRest([cluster.hadoop.rm_url], Login(getpass.getuser())) as rest:
            until(lambda: len(rest.reports()) == 2 and all(report.state.ended for report in rest.reports()))
            known = [report.application_id for report in rest.reports()]
        assert first in known
        forgotten = [other for other in others if other not in known]
        assert len(forgotten) == 2

        for one in forgotten:
            code = others.index(one) + 1
            assert f"container 0 exited with code {code}" in cluster.command("dlapp-status", one).out
            view = json.loads(cluster.command("dlapp-status", "--json", one).out)
            assert (view["state"], view["cause"], view["exit_code"]) == ("FINISHED", "failed", 1)
            assert [each["exit_code"] for each in view["containers"]] == [code]
            until(lambda item=one: cluster.command("dlapp-logs", item).out == f"[0] printed by {item}\n")  # type: ignore[misc]
        # By the time of submission, wherever each was found.
        ids = [str(item) for item in (first, *others)]
        for count in (20, 3, 1):
            listed = json.loads(cluster.command("dlapp-list", "--json", "-n", count).out)["applications"]
            assert [item["application_id"] for item in listed] == ids[-count:]

        # What an ApplicationMaster leaves that was killed between its history and the removal of its directory.
        running = cluster.submit("running", "sleep 600")
        until(shows(lambda: client.status(running).state is State.RUNNING))
        strange = ApplicationId(first.cluster_timestamp_ms, 9999)
        for one in (*forgotten, first, strange):
            files.make(paths.staging(one), 0o700)
            files.write(f"{paths.staging(one)}/am.json", b"{}", 0o600)
        before = set(files.names(paths.all_staging))

        def is_swept(*gone: ApplicationId) -> bool:
            assert cluster.command("dlapp-list").code == 0
            return set(files.names(paths.all_staging)) == before - {str(item) for item in gone}

        until(lambda: is_swept(first))
        assert str(running) in files.names(paths.all_staging)
        # What the ResourceManager does not know is left alone for two days.
        web, path = files._path_at(f"{paths.staging(forgotten[0])}/am.json")
        web.set_mtime(path, clock.now_ms() - 3 * 86_400_000)
        until(lambda: is_swept(first, forgotten[0]))
        assert cluster.command("dlapp-status", forgotten[0]).code == 0

        done = cluster.command("dlapp-rm", first)
        assert (done.code, "is still known to the ResourceManager" in done.err) == (2, True)
        done = cluster.command("dlapp-rm", running)
        assert (done.code, "is RUNNING: only what has ended can be removed" in done.err) == (2, True)
        assert cluster.command("dlapp-rm", forgotten[1]).out == f"{forgotten[1]} was removed from the history\n"
        assert str(forgotten[1]) not in files.names(paths.all_staging)
        assert cluster.command("dlapp-status", forgotten[1]).code == 3
        listed = json.loads(cluster.command("dlapp-list", "--json").out)["applications"]
        assert str(forgotten[1]) not in [item["application_id"] for item in listed]
        client.kill(running)

    @pytest.mark.hadoop
    def test_the_lifetime_limits_of_queues_end_applications_softly_with_their_output_committed(
        cluster: Cluster,
    ) -> None:
        script = "trap 'kill $!; echo saved > output/x; exit 0' TERM\nmkdir output\nsleep 600 &\nwait $!"
        limited = {
            queue: cluster.submit(f"limited-{queue}", script, output=True, queue=queue)
            for queue in ("research", "brief")
        }
        for queue, one in limited.items():
            end = cluster.client.wait(one, timeout_s=240)
            assert end.cause is Cause.TIMED_OUT, queue
            assert end.diagnostics == "timed out: lifetime limit of the queue or application in YARN, output committed"
            target = f"{cluster.files.home}/results/limited-{queue}/x"
            assert cluster.files.read(target, max_bytes=100) == b"saved\n"

    @pytest.mark.hadoop
    def test_a_program_survives_kills_and_stops_of_a_recovering_nodemanager(cluster: Cluster) -> None:
        client, runs = cluster.client, cluster.place / "runs"
        go = [cluster.place / f"go{index}" for index in range(2)]
        script = (
            f"echo $CONTAINER_INDEX >> {runs}; mkdir output; while ! [ -e {cluster.place}/go$CONTAINER_INDEX ]; "
            "do echo step > output/x; sleep 0.1; done"
        )
        one = cluster.submit("recovering", script, containers=2, output=True)

        def phases() -> dict[int, Phase]:
            return {each.index: each.phase for each in client.status(one).containers}

        until(shows(lambda: phases() == {0: Phase.RUNNING, 1: Phase.RUNNING}), 120)
        assert {each.host for each in client.status(one).containers} == {"127.0.1.1"}
        hadoop = cluster.hadoop
        for number, end_part in enumerate((hadoop.kill_part, hadoop.stop_part)):
            registered = hadoop.log(NODE).count("Registered with ResourceManager")
            end_part(NODE)
            if number == 0:
                # One ends while there is no NodeManager.
                go[0].touch()
                until(shows(lambda: phases() == {0: Phase.ENDED, 1: Phase.RUNNING}))
            hadoop.start_part(NODE)
            until(
                lambda registered=registered: hadoop.log(NODE).count("Registered with ResourceManager") > registered,  # type: ignore[misc]
                120,
            )
        go[1].touch()
        end = client.wait(one, timeout_s=120)
        assert end.cause is Cause.SUCCEEDED, end.diagnostics
        assert [(each.attempt, each.earlier) for each in end.containers] == [(1, ()), (1, ())]
        assert end.attempt == 1
        assert sorted(runs.read_text().split()) == ["0", "1"]
