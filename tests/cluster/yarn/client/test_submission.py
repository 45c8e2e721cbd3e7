"""A submission to a ResourceManager that recovers, which a second copy of an application would end, and its size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.am_plan import AmPlan
from dlapp.cluster.yarn.client.rest import AppSubmission, YarnRest
from dlapp.cluster.yarn.client.submission import ApplicationSubmitter, credentials_of
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.values import Cluster, Launch
from dlapp.config import load_config
from dlapp.errors import Unreachable, UsageError
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.hadoop.tokens import Credentials
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.spec import AppSpec, InputSpec, RoleSpec, Secrets, Submission
from tests.services.http.http_server import Answer, Request, as_json, http_server

APP = ApplicationId(1700000000000, 7)
NOT_FOUND = {"RemoteException": {"javaClassName": "org.apache.hadoop.yarn.webapp.NotFoundException", "message": "no"}}


class Recovering:
    """A ResourceManager without high availability, as seen: it answers before it has read its state.

    Args:
        starting: so many questions after its state it is still reading.
        has: it finds the application in its state then.
        loses: answers to submissions that are lost: the connection is cut.
    """

    def __init__(self, starting: int, *, has: bool = False, loses: int = 0) -> None:
        self.starting, self.has, self.loses = starting, has, loses
        self.submitted = 0

    def answer(self, method: str, path: str) -> tuple[int, Any] | None:
        if path == "/ws/v1/cluster/info":
            self.starting -= 1
            return 200, {"clusterInfo": {"haState": "INITIALIZING" if self.starting >= 0 else "ACTIVE"}}
        if method == "POST":
            assert self.starting < 0, "it dies of this when it finds the application in its state"
            assert not self.has, "it has the application already"
            self.submitted += 1
            self.has = True
            self.loses -= 1
            return None if self.loses >= 0 else (202, {})
        if self.starting >= 0 or not self.has:
            return 404, NOT_FOUND
        return 200, {"app": {"id": str(APP), "state": "ACCEPTED", "finalStatus": "UNDEFINED"}}


@contextmanager
def serving(manager: Recovering) -> Iterator[YarnRest]:
    def answer(request: Request) -> Answer | None:
        made = manager.answer(request.method, request.path)
        return None if made is None else as_json(made[1], made[0])

    with http_server(answer) as url, YarnRest([url], Login("tony"), timeout_s=120) as rest:
        yield rest


def hand_in(rest: YarnRest) -> str | None:
    submitter = ApplicationSubmitter(SimpleNamespace(), None)  # type: ignore[arg-type]
    launch = Launch(command=("true",), resources={}, credentials=b"")
    submission = AppSubmission(application_id=APP, name="it", launch=launch, memory_mib=256)
    return submitter._submit_until_accepted(rest, submission)


def test_a_plan_too_large_for_a_resourcemanager_is_refused_naming_its_largest_part() -> None:
    def plan(env: str, source: str) -> AmPlan:
        spec = AppSpec(
            username="tony",
            appname="a",
            workspace="/w",
            script="s",
            inputs=(InputSpec(sources=(source,), input_path="in"),),
            roles=(RoleSpec(instances=1),),
        )
        return AmPlan(
            submission=Submission(
                spec=spec, workspace_archive="", workspace_digest="", submitter="tony", submitted_ms=1
            ),
            secrets=Secrets(control_secret="0" * 64, env={"A": env}),
            cluster=Cluster(schedulers=(), clients=(), login=Login("tony"), dialect=Dialect.NONE),
            home="hdfs://nn/user/tony",
            python="python3",
            hdfs=HdfsPlace("hdfs://nn", (), Login("tony")),
            docker=DockerSettings("", "host"),
        )

    held = plan("x" * (200 << 10), "hdfs://nn/a")
    assert AmPlan.from_credentials(Credentials.decode(credentials_of(held))) == held
    with pytest.raises(
        UsageError, match=r"have 29\d KiB, .* 256 KiB at most: the variables \(env.NAME, env_file\) alone "
    ):
        credentials_of(plan("x" * (293 << 10), "hdfs://nn/a"))
    with pytest.raises(UsageError, match=r"the input \(\[from_hdfs\]\) alone have 293 KiB"):
        credentials_of(plan("x", "hdfs://nn/" + "x" * (293 << 10)))


def test_a_plan_that_is_too_large_is_refused_before_anything_is_sent() -> None:
    spec = AppSpec(username="tony", appname="a", workspace="/w", script="s", roles=(RoleSpec(instances=1),))
    submission = Submission(
        spec=spec, workspace_archive="/w.tar.gz", workspace_digest="", submitter="t", submitted_ms=1
    )
    place = HdfsPlace("hdfs://nn", (), Login("tony"))
    # Whatever else it does needs an attribute that this one lacks.
    session = SimpleNamespace(
        config=load_config({}),
        login=place.login,
        site=SimpleNamespace(resource_managers=lambda _: [], web_scheme="http", web_urls=list),
        rest=lambda _: None,
        files=lambda _: SimpleNamespace(home=place.home),
        hdfs=lambda _: place,
        dialect=lambda: Dialect.NONE,
        preemption_wait_s=lambda: 15.0,
    )
    secrets = Secrets(control_secret="0" * 64, env={"A": "x" * (300 << 10)}, environment={})
    with pytest.raises(UsageError, match=r"256 KiB at most: the variables"):
        ApplicationSubmitter(session, None).submit(submission, secrets)  # type: ignore[arg-type]


def test_no_application_is_submitted_before_the_resourcemanager_is_active() -> None:
    manager = Recovering(starting=2)
    with serving(manager) as rest:
        assert hand_in(rest) is None
    assert manager.submitted == 1


def test_an_accepted_application_is_not_submitted_again() -> None:
    manager = Recovering(starting=0, loses=1)
    with serving(manager) as rest:
        assert hand_in(rest) is None
    assert manager.submitted == 1


def test_an_application_is_not_unknown_to_a_resource_manager_that_still_reads_its_state() -> None:
    with serving(Recovering(starting=1)) as rest:
        with pytest.raises(Unreachable, match=r"the ResourceManager is starting \(INITIALIZING\)"):
            rest.report(APP)
        with pytest.raises(ApplicationNotFound):
            rest.report(APP)
    with serving(Recovering(starting=1)) as rest, pytest.raises(Unreachable, match="not active yet"):
        rest.new_application()
