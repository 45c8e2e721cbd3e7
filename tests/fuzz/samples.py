"""Valid values that the tests begin with, made by the code that writes them."""

from __future__ import annotations

from typing import Any

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import DeviceRecord, HostRecord, LeaseRecord, Quarantine
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Fault, Hello, Phase, Report, StoredOutput, TaskResult
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, OutputView, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, RoleSpec, Secrets, Submission

APPLICATION = ApplicationId(1_700_000_000_000, 42)
CONTAINER = ContainerId(APPLICATION, 1, 2)
SECRET = "f" * 64

RESULT = TaskResult(
    fault=Fault.USER, exit_code=3, message="oh", outputs=(StoredOutput(name="", part="/x", files=1, size_bytes=9),)
)
HELLO = Hello(container_id=CONTAINER, host="node7", pid=4711)
REPORT = Report(
    container_id=CONTAINER,
    number=3,
    index=0,
    phase=Phase.RUNNING,
    progress=0.5,
    detail="half",
    gpus=(0, 1),
    result=RESULT,
)
VIEW = ApplicationView(
    application_id=APPLICATION,
    attempt=1,
    state=State.FINISHED,
    final_status=FinalStatus.SUCCEEDED,
    cause=Cause.SUCCEEDED,
    username="tony",
    appname="digits",
    submitter="tony",
    submitted_ms=1_700_000_000_000,
    started_ms=1_700_000_000_100,
    finished_ms=1_700_000_001_000,
    total_containers=1,
    memory_mib=512,
    vcores=1,
    containers=(
        ContainerView(
            container_id=CONTAINER, role="worker", role_index=0, index=0, host="node7", gpus=(0,), exit_code=0
        ),
    ),
    outputs=(OutputView(name="", target="hdfs://nn/user/tony/run", committed=True),),
)
SUBMISSION = Submission(
    spec=AppSpec(username="tony", appname="digits", workspace="/w", script="start.sh", roles=(RoleSpec(instances=2),)),
    workspace_archive="/w.tgz",
    workspace_digest="sha256-0",
    submitter="tony",
    submitted_ms=1_700_000_000_000,
)
SECRETS = Secrets(control_secret=SECRET, env={"A": "b"})

DEVICES = tuple(Device(f"GPU-{place}", place, place) for place in range(2))
HOST_RECORD = HostRecord(
    "node7",
    devices=(
        DeviceRecord(DEVICES[0], failures=1),
        DeviceRecord(DEVICES[1], quarantine=Quarantine("lost", "it is not there", since_ms=1_700_000_000_000)),
    ),
    leases=(
        LeaseRecord(
            str(CONTAINER),
            str(APPLICATION),
            "tony",
            ("GPU-0",),
            since_ms=1_700_000_000_000,
            token="t",
            boot_id="b",
            evidence={"task": {"pid": 4711, "start_ticks": 5}},
        ),
    ),
    machine="m",
    boot_id="b",
    seen_ms=1_700_000_000_000,
)


def as_json(*values: Any) -> list[Any]:
    """Return values in their JSON form."""
    return [to_json(value) for value in values]
