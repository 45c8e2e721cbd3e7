"""Checks of dlapp-doctor on nodes of a cluster, in an application's containers.

On some node the checks run in an ApplicationMaster that does nothing else: it registers, which is the first check, and
reports its findings when it unregisters. YARN passes them on in the application's diagnostics. On all nodes they run in
the task of an application on each (`dlapp.client.node_runs`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.doctor.findings import REQUEST_TIMEOUT_S, Check, CheckContext, Finding, failed, passed, run_checks, warned
from dlapp.doctor.local import ENOUGH_FREE_BYTES
from dlapp.errors import DlappError
from dlapp.system.disk_space import full_disk, is_noexec
from dlapp.system.text import human_size
from dlapp.task.environment import NODE_MANAGERS, node_name

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.engine import YarnEngine
    from dlapp.config import Config
    from dlapp.locations import HdfsPlace
    from dlapp.values.launch_spec import LaunchSpec, LedgerSettings

SECRET = "dlapp.doctor"
TIMEOUT_S = 120.0
"""Time limit from the submission to the last output: a container is allocated in a second if there is room."""
REGISTER_S = 20.0
MAX_CONTAINERS = 10_000
"""Number of containers of an application for which a node's limit of open files must suffice."""
_RECOVERY = "yarn.nodemanager.recovery.enabled"
GPU_PLUGIN = "yarn.io/gpu"
_PLUGINS, _SCRIPTS = "yarn.nodemanager.resource-plugins", "yarn.nodemanager.health-checker.scripts"
_SCRIPT_PATH = "yarn.nodemanager.health-checker.{}.path"
_MAX_JSON_LENGTH = 60_000
"""The ResourceManager keeps 64 KiB. Source: yarn-default.xml, yarn.app.attempt.diagnostics.limit.kc."""


# ---- on the client ----


def on_a_node(config: Config, engine: YarnEngine) -> Iterator[Finding]:
    """Yield the findings on some node of the cluster.

    Raises:
        DlappError: no container was allocated, or its process did not finish.
    """
    from dlapp.cluster.yarn.container_executor import repair_of
    from dlapp.gpuid.factory import configured
    from dlapp.values.serialization import to_json

    instructions = {
        "texts": _texts(config),
        "ledger": to_json(configured(config) if config.gpuid.zookeeper.ensemble else None),
    }
    output = engine.run_on_node("doctor", SECRET, instructions, timeout_s=TIMEOUT_S)
    try:
        found = [Finding(**one) for one in json.loads(output)]
    except (ValueError, TypeError):
        yield failed("node", output or "the check in the container printed nothing", repair_of(output))
        return
    yield from found


def on_all_nodes(config: Config) -> Iterator[Finding]:
    """Yield the findings on each running node of the cluster, grouped by node.

    Raises:
        Unreachable: the cluster does not answer.
    """
    from dlapp.client import Client
    from dlapp.client.node_runs import check_on
    from dlapp.cluster.yarn.container_executor import repair_of

    with Client(config) as client:
        for one in check_on(client, client.engine.node_names(), _texts(config), timeout_s=TIMEOUT_S):
            host = one["host"]
            if one["error"]:
                yield failed("node", one["error"], repair_of(one["error"]))._replace(node=host)
            try:
                yield from [Finding(**found)._replace(node=host) for found in one["findings"]]
            except TypeError as error:
                yield failed("node", f"its findings cannot be read: {error}")._replace(node=host)


def _texts(config: Config) -> dict[str, str]:
    return {name: config.texts[name] for name in config.texts if config.origins[name] != "default"}


# ---- on the node ----


def main(argv: Sequence[str]) -> int:
    """Run as the process in the container."""
    from dlapp.cluster.yarn.probe import ProbeMaster

    try:
        with ProbeMaster.from_container(SECRET, timeout_s=REGISTER_S) as master:
            found = [passed("node", f"{node_name()}: a container was granted, and the ResourceManager reached")]
            found += run_checks(checks(master.instructions))
            master.finish(_in_json(found))
    except (DlappError, OSError) as error:
        # YARN shows the end of this in its diagnostics.
        print(f"dlapp: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def findings_of_task(texts: Mapping[str, str], launch: LaunchSpec) -> list[Finding]:
    """Return the findings of a task on its node.

    Args:
        texts: the submitter's configuration, without defaults.
    """
    ledger = launch.ledger if launch.ledger is not None and launch.ledger.covers_cluster else None
    began = passed("node", f"{node_name()}: a container was granted, and the ApplicationMaster reached")
    return [began, *run_checks(_checks(texts, launch.hdfs, ledger))]


def checks(instructions: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a node."""
    from dlapp.locations import HdfsPlace
    from dlapp.values.launch_spec import LedgerSettings
    from dlapp.values.serialization import from_json

    ledger = None if instructions["ledger"] is None else from_json(LedgerSettings, instructions["ledger"])
    return _checks(instructions["texts"], from_json(HdfsPlace, instructions["hdfs"]), ledger)


def _checks(texts: Mapping[str, str], hdfs: HdfsPlace | None, ledger: LedgerSettings | None) -> list[Check]:
    from dlapp.config import load_config
    from dlapp.doctor import docker as runtime
    from dlapp.doctor import gpu as gpuid
    from dlapp.doctor import hdfs as storage

    context = CheckContext(load_config(dict(texts)), on_node=True, hdfs=hdfs, ledger=ledger)
    own = [
        Check("node.python", _python),
        Check("node.user", _user),
        Check("node.disk", _disk),
        Check("node.files", _files),
        Check("node.recovery", _recovery),
        Check("node.health", _health_script),
    ]
    return [*own, *storage.checks(context), *gpuid.checks(context), *runtime.checks(context)]


def _python() -> Iterator[Finding]:
    yield passed("node.python", f"{sys.version.split()[0]} at {sys.executable}, {os.uname().machine}")


def _user() -> Iterator[Finding]:
    from dlapp.client.operations.connections import caller
    from dlapp.node_policy import node_policy, root_problem

    user, submitter = caller(), os.environ.get("USER", "")
    repair = "run NodeManagers as a user of their own, or use LinuxContainerExecutor (docs/yarn.md)"
    if problem := root_problem(node_policy()):
        yield failed("node.user", f"containers run as root, and every application fails: {problem}", repair)
    elif os.geteuid() == 0:
        yield warned("node.user", "containers run as root", repair)
    elif submitter and submitter != user:
        yield passed("node.user", f"containers of {submitter} run as {user}")
    else:
        yield passed("node.user", f"containers run as {user}")


def _disk() -> Iterator[Finding]:
    there = os.statvfs(".")
    free = there.f_bavail * there.f_frsize
    words = f"{human_size(free)} free for containers at {os.getcwd()}"
    if is_noexec("."):
        words = f"{os.getcwd()}: its file system executes nothing (noexec), and no start script in a workspace there"
        yield failed("node.exec", words, "set yarn.nodemanager.local-dirs to directories on other disks")
    if full := full_disk(os.path.abspath("file")):
        yield failed("node.disk", full, "make room under yarn.nodemanager.local-dirs: nothing can be unpacked there")
    elif free < ENOUGH_FREE_BYTES:
        yield warned("node.disk", words, "make room under yarn.nodemanager.local-dirs")
    else:
        yield passed("node.disk", words)


def _files() -> Iterator[Finding]:
    from dlapp.net.control import max_connections

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if (tasks := max_connections(hard)) < MAX_CONTAINERS:
        # An application of fewer tasks runs.
        yield warned(
            "node.files",
            f"a process may open {hard} files: an ApplicationMaster here serves {tasks} tasks",
            "raise the hard limit of open files of the NodeManagers (LimitNOFILE of their service, or nofile)",
        )
    else:
        yield passed("node.files", f"a process may open {'any number of' if hard < 0 else hard} files")


def _node_manager_settings(*names: str) -> dict[str, str]:
    """Return properties of this node's NodeManager; those that it does not have, or does not show, are left out."""
    from dlapp.cluster.yarn.client.rest import YarnRest
    from dlapp.login import own_login

    server = f"{os.environ.get(NODE_MANAGERS)}:{os.environ.get('NM_HTTP_PORT')}"
    found: dict[str, str] = {}
    for scheme in ("http", "https"):
        with (
            contextlib.suppress(DlappError),
            YarnRest([f"{scheme}://{server}"], own_login(), timeout_s=REQUEST_TIMEOUT_S) as rest,
        ):
            for name in names:
                if (value := found.get(name) or rest.configuration(name)) is not None:
                    found[name] = value
    return found


def _health_script() -> Iterator[Finding]:
    """Yield whether YARN learns of GPUs that fail, if it assigns them here."""
    # Hadoop 3.3 and later can have several scripts, by name.
    names = _node_manager_settings(_PLUGINS, _SCRIPTS)
    if GPU_PLUGIN not in names.get(_PLUGINS, ""):
        return
    scripts = [one.strip() for one in (names.get(_SCRIPTS) or "script").split(",")]
    paths = _node_manager_settings(*(_SCRIPT_PATH.format(one) for one in scripts))
    if any(paths.values()):
        shown = ", ".join(filter(None, paths.values()))
        yield passed("node.health", f"{GPU_PLUGIN}: the NodeManager runs {shown} as its health script")
    else:
        found = f"{GPU_PLUGIN} without a health script: YARN goes on to assign GPUs that have failed"
        repair = f"set {_SCRIPT_PATH.format('script')} to dlapp-gpu, with health (docs/yarn.md)"
        yield warned("node.health", found, repair)


def _recovery() -> Iterator[Finding]:
    """Yield whether payloads outlive their NodeManager; nothing if that is unknown."""
    value = _node_manager_settings(_RECOVERY).get(_RECOVERY)
    if value == "true":
        yield passed("node.recovery", "programs continue when their NodeManager is restarted")
    elif value is not None:
        found = "a NodeManager that is restarted ends its containers; they run again"
        yield warned("node.recovery", found, f"set {_RECOVERY}, and a fixed port (docs/hadoop/yarn-site.xml)")


def _in_json(found: Sequence[Finding]) -> str:
    rows = [one._asdict() for one in found]
    while len(text := json.dumps(rows)) > _MAX_JSON_LENGTH:
        # Failures are more important than passes.
        rows.remove(next((row for row in rows if row["verdict"] == "pass"), rows[-1]))
    return text
