"""A small ApplicationMaster for the tests, run by YARN: python -I trial_am.py PLAN

PLAN is a JSON file: where dlapp is and the ResourceManager, what to ask for, what to run. What it saw goes to the file
``result`` of the plan, as JSON.
"""

import json
import os
import socket
import sys
import time

began = time.monotonic()
with open(sys.argv[1]) as file:
    plan = json.load(file)
sys.path[:0] = plan["path"]

from dlapp.cluster.yarn.am.node_manager import NodeManager  # noqa: E402
from dlapp.cluster.yarn.am.resource_manager import ResourceManager  # noqa: E402
from dlapp.cluster.yarn.dialect import Dialect  # noqa: E402
from dlapp.cluster.yarn.values import ContainerStatus, Granted, Launch, ResourceRequest  # noqa: E402
from dlapp.hadoop.tokens import AM_RM_KIND, read_container_credentials  # noqa: E402
from dlapp.values.ids import ContainerId  # noqa: E402
from dlapp.values.report import FinalStatus  # noqa: E402
from dlapp.values.spec import Resources  # noqa: E402

imported = time.monotonic()
credentials = read_container_credentials()
token = credentials.of_kind(AM_RM_KIND)
assert token is not None
resources = Resources(**plan["resources"])
rm = ResourceManager([tuple(plan["scheduler"])], token, Dialect(plan.get("dialect", "gcores")))
registration = rm.register(socket.gethostname(), 0, "", timeout_s=120)
registered = time.monotonic()

names = [*plan["hosts"], "/default-rack", "*"]
count = plan["count"]
wanted = [ResourceRequest(priority=1, request_id=0, name=name, count=count, resources=resources) for name in names]
granted: dict[ContainerId, Granted] = {}
ended: dict[ContainerId, ContainerStatus] = {}
while len(ended) < count:
    news = rm.allocate(wanted, progress=len(ended) / count, timeout_s=120)
    wanted = []
    surplus = []
    for container in news.granted:
        if len(granted) == count:
            surplus.append(container.container_id)
            continue
        granted[container.container_id] = container
        launch = Launch(
            command=tuple(plan["command"]),
            environment={"INDEX": str(len(granted) - 1), **plan["environment"]},
        )
        failed = NodeManager(container.node, rm.node_tokens[container.node]).start([(container, launch)], timeout_s=120)
        assert failed == {container.container_id: None}, failed
    for status in news.ended:
        if status.container_id in granted:
            ended[status.container_id] = status
    if surplus:
        rm.allocate((), surplus, timeout_s=120)
    time.sleep(0.05)
worked = time.monotonic()

with open("/proc/self/status") as file:
    memory_kib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
result = {
    "largest": [registration.largest.memory_mib, registration.largest.vcores, registration.largest.gcores],
    "granted": {
        str(container.container_id): [str(container.node), container.resources.gcores] for container in granted.values()
    },
    "ended": {str(each.container_id): [each.exit_status, each.diagnostics] for each in ended.values()},
    "secrets": {name: secret.hex() for name, secret in credentials.secrets.items()},
    "environment": dict(os.environ),
    "memory_kib": memory_kib,
    "import_s": imported - began,
    "register_s": registered - imported,
    "work_s": worked - registered,
}
with open(plan["result"] + ".new", "w") as file:
    json.dump(result, file)
os.rename(plan["result"] + ".new", plan["result"])
while not rm.finish(FinalStatus.SUCCEEDED, "the trial is over", "", timeout_s=120):
    time.sleep(0.02)
rm.close()
