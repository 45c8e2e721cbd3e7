"""GPUs that YARN's own plug-in assigns, with the devices controller: each container has its own, and no others."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, BOB, GPUS, MINORS, assigned
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import NODES, Hadoop

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as other users")]
NVIDIA = 195
HOLDS = """exec {place}/python3 - <<'END'
import errno, json, os, time
opened = {{}}
for minor in {minors}:
    try:
        os.close(os.open(f"{place}/nvidia{{minor}}", os.O_RDWR))
    except OSError as error:
        opened[minor] = errno.errorcode[error.errno]
name = f"{place}/{{os.environ['USER']}}-{{os.environ['CONTAINER_INDEX']}}"
with open(f"{{name}}.new", "w") as file:
    json.dump({{"at": os.getcwd(), "cuda": os.environ["CUDA_VISIBLE_DEVICES"], "opened": opened}}, file)
os.rename(f"{{name}}.new", f"{{name}}.json")
while not os.path.exists("{place}/go"):
    time.sleep(0.05)
END
"""


def test_containers_of_two_users_get_different_gpus_and_can_open_no_others(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    minors = [minor for of_node in MINORS.values() for minor in of_node]
    for minor in minors:
        # No driver has this number: a device that may be opened is missing (ENXIO), another one is denied (EPERM).
        os.mknod(place / f"nvidia{minor}", 0o020666, os.makedev(NVIDIA, minor))
        (place / f"nvidia{minor}").chmod(0o666)
    clients, applications = {}, {}
    for user in ALICE, BOB:
        script = HOLDS.format(place=place, minors=minors)
        resources = {"gcores": 1, "containers": GPUS}
        clients[user] = client_of(user)
        file = properties(place / user, script, application={"username": user}, resources=resources)
        applications[user] = clients[user].submit(str(file))
    until(lambda: len(list(place.glob("*.json"))) == 2 * GPUS)
    assert assigned(hadoop_with_users) == minors
    (place / "go").touch()
    for user in ALICE, BOB:
        end = clients[user].wait(applications[user], timeout_s=120)
        assert end.cause is Cause.SUCCEEDED, end.diagnostics
    held = [json.loads(path.read_text()) for path in place.glob("*.json")]
    own: Counter[int] = Counter()
    for item in held:
        (part,) = (part for part, host in NODES.items() if f"local-{host}/" in item["at"])
        seen = {int(minor): error for minor, error in item["opened"].items()}
        (given,) = (minor for minor in MINORS[part] if seen[minor] == "ENXIO")
        assert [seen[minor] for minor in MINORS[part] if minor != given] == ["EPERM"]
        place_of = minors.index(given)
        assert item["cuda"] == f"GPU-{place_of:08d}-aaaa-bbbb-cccc-000000000000"
        own[given] += 1
    assert own == Counter(minors)
    until(lambda: assigned(hadoop_with_users) == [])
