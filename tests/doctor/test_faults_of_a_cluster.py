"""Faults of a real Hadoop cluster, and of a client's configuration: dlapp-doctor and an application agree on each.

The cluster takes 15 s to start on two cores, a case 5 to 15 s, and those that restart servers 30 s.
"""

from __future__ import annotations

import contextlib
import getpass
import random
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.doctor.findings import FAIL, WARN
from tests import seeds
from tests.cluster.yarn.on_yarn import set_safe_mode
from tests.doctor.cases import FAILS, SUCCEEDS, WAITS, Case, Run, Site, check, parametrized
from tests.services.disks import fill, small_disk
from tests.services.hadoop import NODES, Hadoop, NoHadoop, _write_xml, read_configuration
from tests.services.polling import wait_until
from tests.tiers import FULL

pytestmark = [pytest.mark.slow, pytest.mark.root("to mount disks")]
CLOCK_C = Path(__file__).with_name("wrong_clock.c")
CLOSED = "127.0.0.1:1"
QUEUE = "yarn.scheduler.capacity.root"
HEALTH_SCRIPT = """#!/bin/sh
part=$(tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 's/-Ddlapp.part=//p')
if [ -e {directory}/ill-$part ]; then echo ERROR the fan has stopped; fi
"""
NO_GCORES = {"yarn.nodemanager.resource-type.gcores": "0"}
GPU = {"resources": {"gcores": 1}}


class ClusterSite(Site):
    """A client of the cluster, and the cluster.

    Args:
        disk: that of the NodeManagers.
    """

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, hadoop: Hadoop, disk: Path = Path("/")
    ) -> None:
        super().__init__(directory, monkeypatch)
        self.hadoop, self.disk = hadoop, disk
        self.set(cluster="yarn", yarn__conf_dir=hadoop.configuration, yarn__python=sys.executable)
        monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())

    def configure(self, file: str, **properties: str) -> None:
        """Give the client another configuration of Hadoop; ``__`` stands for a dot and ``_`` for a hyphen."""
        directory = self.directory / "conf"
        if not directory.exists():
            shutil.copytree(self.hadoop.configuration, directory)
            self.set(yarn__conf_dir=directory)
        change = {name.replace("__", ".").replace("_", "-"): text for name, text in properties.items()}
        _write_xml(directory / file, read_configuration(directory / file) | change)

    def on_hdfs(self, path: str, operation: str) -> None:
        """Change a path on HDFS as its superuser."""
        url = f"{self.hadoop.hdfs_url}/webhdfs/v1{path}?op={operation}&user.name={getpass.getuser()}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The disk of all NodeManagers' directories, 300 MiB."""
    with small_disk(tmp_path_factory.mktemp("nodes"), size_mib=300) as place:
        yield place


@pytest.fixture(scope="module")
def hadoop(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """A cluster on it, in place of the one that other tests share: its nodes are ill if a file says so."""
    directory = tmp_path_factory.mktemp("hadoop")
    for host in NODES.values():
        (disk / host).mkdir()
        (directory / f"local-{host}").symlink_to(disk / host)
    script = directory / "health"
    script.write_text(HEALTH_SCRIPT.format(directory=directory))
    script.chmod(0o755)
    settings = {
        "yarn.nodemanager.disk-health-checker.interval-ms": "86400000",
        "yarn.nodemanager.health-checker.script.path": str(script),
        "yarn.nodemanager.health-checker.interval-ms": "1000",
    }
    try:
        cluster = Hadoop.start(directory, settings={"yarn-site.xml": settings})
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    with cluster:
        yield cluster


@pytest.fixture
def site(hadoop: Hadoop, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    return ClusterSite(tmp_path, monkeypatch, hadoop, disk)


# ---- what brings the faults about ----


def nodes(hadoop: Hadoop) -> dict[str, str]:
    """Return the states of the nodes by host."""
    with contextlib.suppress(OSError):
        listed = (hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/nodes").get("nodes") or {}).get("node", [])
        return {item["nodeHostName"]: item["state"] for item in listed}
    return {}


def until_nodes_run(hadoop: Hadoop) -> None:
    wait_until(lambda: list(nodes(hadoop).values()) == ["RUNNING"] * len(NODES), 120, "both nodes run")


@contextlib.contextmanager
def ill(site: ClusterSite, *parts: str) -> Iterator[None]:
    files = [site.hadoop.directory / f"ill-{part}" for part in parts]
    for file in files:
        file.touch()
    try:
        hosts = {NODES[part] for part in parts}
        is_ill = lambda: {host for host, state in nodes(site.hadoop).items() if state == "UNHEALTHY"} == hosts  # noqa: E731
        wait_until(is_ill, 120, "the nodes are ill")
        yield
    finally:
        for file in files:
            file.unlink()
        until_nodes_run(site.hadoop)


@contextlib.contextmanager
def restarted(site: ClusterSite, parts: tuple[str, ...], file: str, properties: dict[str, str]) -> Iterator[None]:
    """Restart servers with other properties in one of their files."""
    hadoop = site.hadoop
    files = [hadoop.directory / (f"conf-{part}" if part in NODES else "conf") / file for part in parts]
    original = [item.read_bytes() for item in files]

    def restart() -> None:
        for part in reversed(parts):
            hadoop.stop_part(part)
        for part in parts:
            hadoop.start_part(part)
        until_nodes_run(hadoop)

    for one in files:
        _write_xml(one, read_configuration(one) | properties)
    try:
        restart()
        yield
    finally:
        for one, text in zip(files, original, strict=True):
            one.write_bytes(text)
        restart()


@contextlib.contextmanager
def queues(site: ClusterSite, *stopped: str) -> Iterator[None]:
    """Stop queues."""
    hadoop, file = site.hadoop, site.hadoop.directory / "conf" / "capacity-scheduler.xml"
    original = file.read_bytes()

    def refresh() -> None:
        problem = hadoop._run_tool("org.apache.hadoop.yarn.client.cli.RMAdminCLI", "-refreshQueues")
        assert problem is None, problem

    _write_xml(file, read_configuration(file) | {f"{QUEUE}.{name}.state": "STOPPED" for name in stopped})
    try:
        refresh()
        yield
    finally:
        file.write_bytes(original)
        _write_xml(file, read_configuration(file) | {f"{QUEUE}.{name}.state": "RUNNING" for name in stopped})
        refresh()
        file.write_bytes(original)


@contextlib.contextmanager
def safe_mode(site: ClusterSite) -> Iterator[None]:
    set_safe_mode(site.hadoop, on=True)
    try:
        yield
    finally:
        set_safe_mode(site.hadoop, on=False)


@contextlib.contextmanager
def home_of(site: ClusterSite, owner: str, permission: str, user: str = "") -> Iterator[None]:
    """Let the home directory of a user, by default of this one, have another owner and mode."""
    me = getpass.getuser()
    path = f"/user/{user or me}"
    if user:
        site.monkeypatch.setenv("HADOOP_USER_NAME", user)
    site.on_hdfs(path, "MKDIRS")
    site.on_hdfs(path, f"SETOWNER&owner={owner}")
    site.on_hdfs(path, f"SETPERMISSION&permission={permission}")
    try:
        yield
    finally:
        site.on_hdfs(path, f"SETOWNER&owner={user or me}")
        site.on_hdfs(path, "SETPERMISSION&permission=755")


@contextlib.contextmanager
def without_operators_file(site: ClusterSite) -> Iterator[None]:
    """Take away the file that lets programs be root on the nodes, which run as root here."""
    file = site.hadoop.directory / "etc" / "dlapp" / "node.yaml"
    text = file.read_text()
    file.unlink()
    try:
        yield
    finally:
        file.write_text(text)


@contextlib.contextmanager
def remounted(site: ClusterSite, options: str) -> Iterator[None]:
    """Change the mount of the nodes' disk, also in the NodeManagers' namespaces: it is one file system."""
    subprocess.run(["mount", "-o", f"remount,{options}", site.disk], check=True)
    mounts = [
        ["nsenter", "--mount", "--target", str(one["pid"]), "mount", "-o", f"remount,bind,{options}", str(site.disk)]
        for part, one in site.hadoop.status().items()
        if part in NODES
    ]
    for command in mounts:
        subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,exec", site.disk], check=True)
        for command in mounts:
            subprocess.run([*command[:-2], "remount,bind,exec", command[-1]], check=True)


@contextlib.contextmanager
def full(site: ClusterSite) -> Iterator[None]:
    ballast = fill(site.disk)
    try:
        yield
    finally:
        ballast.unlink()


def python_of_few_files(site: ClusterSite) -> None:
    """Let containers begin with a limit of 200 open files."""
    python = site.directory / "python3"
    python.write_text(f'#!/bin/sh\nulimit -n 200\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    site.set(yarn__python=python)


def wrong_clock(site: ClusterSite) -> None:
    """Put the clock of the client's commands two minutes back."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the clock of one process cannot be changed")
    library = site.directory / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, CLOCK_C], check=True)
    site.within = ["env", f"LD_PRELOAD={library}"]


def other_nameservice(site: ClusterSite) -> None:
    """Name a nameservice whose only NameNode does not run."""
    site.configure("core-site.xml")
    names = {"dfs.nameservices": "gone", "dfs.ha.namenodes.gone": "one"}
    names |= {"dfs.namenode.rpc-address.gone.one": CLOSED, "dfs.namenode.http-address.gone.one": CLOSED}
    path = site.directory / "conf" / "hdfs-site.xml"
    _write_xml(path, read_configuration(path) | names)


def python_on_it(site: ClusterSite) -> None:
    other_nameservice(site)
    site.set(yarn__python_archive="hdfs://gone/python.tgz", yarn__python="bin/python3")


def no_namenode(site: ClusterSite) -> None:
    site.configure("core-site.xml", fs__defaultFS=f"hdfs://{CLOSED}")
    site.configure("hdfs-site.xml", dfs__namenode__http_address=CLOSED)


def only_native(site: ClusterSite) -> None:
    """Allow only HDFS's own protocols, with a wrong port."""
    site.configure("core-site.xml", fs__defaultFS=f"hdfs://{CLOSED}")
    site.set(storage__hdfs="native")


def yarn_site(**properties: str) -> Callable[[ClusterSite], None]:
    return lambda site: site.configure("yarn-site.xml", **properties)


OF_CLIENT = [
    Case(
        "no-configuration",
        (FAIL, "hadoop.conf"),
        lambda site: site.set(yarn__conf_dir="/no/such"),
        (Run(FAILS, "/no/such"),),
    ),
    Case(
        "no-resourcemanager",
        (FAIL, "yarn"),
        yarn_site(yarn__resourcemanager__webapp__address=CLOSED),
        (Run(FAILS, CLOSED),),
    ),
    Case(
        "wrong-dialect",
        (FAIL, "yarn.dialect"),
        lambda site: site.set(yarn__dialect="yarn.io/gpu"),
        (Run(FAILS, r"yarn\.dialect: is yarn\.io/gpu"),),
    ),
    Case(
        "large-application-master",
        (FAIL, "yarn.maximum"),
        lambda site: site.set(yarn__am_memory="100g"),
        (Run(FAILS, r"102400"),),
    ),
    Case(
        "large-defaults",
        (WARN, "yarn.maximum"),
        lambda site: site.set(defaults__memory="100g"),
        (Run(SUCCEEDS), Run(FAILS, r"102400", {"resources": {"memory": "100g"}})),
    ),
    Case("small-application-master", (WARN, "yarn.minimum"), lambda site: site.set(yarn__am_memory="128m")),
    Case("many-attempts", (WARN, "yarn.attempts"), lambda site: site.set(yarn__am_attempts="5")),
    Case(
        "no-ledger",
        (WARN, "gpu.ledger"),
        lambda site: None,
        (Run(SUCCEEDS), Run(FAILS, r"gpuid\.zookeeper\.ensemble", GPU)),
    ),
    Case(
        "ledger-away",
        (FAIL, "gpu.ledger"),
        lambda site: site.set(gpuid__zookeeper__ensemble=CLOSED, gpuid__zookeeper__credentials="none"),
        (Run(SUCCEEDS), Run(WAITS, re.escape(CLOSED), GPU)),
    ),
    Case(
        "ledger-without-credentials",
        (FAIL, "gpu.ledger.access"),
        lambda site: site.set(gpuid__zookeeper__ensemble=CLOSED),
        (Run(SUCCEEDS), Run(FAILS, r"gpuid\.zookeeper\.credentials", GPU)),
    ),
    Case("no-collected-logs", (WARN, "yarn.logs"), yarn_site(yarn__log_aggregation_enable="false")),
    Case("no-history", (WARN, "yarn.timeline"), yarn_site(yarn__timeline_service__enabled="false")),
    Case("clock-of-yarn", (WARN, "clock.yarn"), wrong_clock),
    Case("clock-of-hdfs", (WARN, "clock.hdfs"), wrong_clock),
    Case("no-namenode", (FAIL, "hdfs"), no_namenode, (Run(FAILS, CLOSED),)),
    Case(
        "wrong-port-of-the-namenode",
        (FAIL, "hdfs.protocol"),
        only_native,
        (Run(FAILS, CLOSED),),
        also=("hdfs",),
    ),
    Case(
        "no-home",
        (FAIL, "hdfs.home"),
        lambda site: site.monkeypatch.setenv("HADOOP_USER_NAME", "nobody9"),
        (Run(FAILS, r"hdfs dfs -mkdir -p /user/nobody9", {"application": {"username": "nobody9"}}),),
    ),
    Case("user-of-a-variable", (WARN, "hadoop.user"), lambda site: home_of(site, "dlapp-two", "700", "dlapp-two")),
    Case(
        "home-open-to-all",
        (FAIL, "hdfs.home"),
        lambda site: home_of(site, "dlapp-open", "777", "dlapp-open"),
        (Run(FAILS, r"hdfs dfs -chmod o-w /user/dlapp-open", {"application": {"username": "dlapp-open"}}),),
    ),
    Case("home-of-another", (WARN, "hdfs.home"), lambda site: home_of(site, "eve", "755")),
    Case("safe-mode", (FAIL, "hdfs.write"), safe_mode, (Run(FAILS, r"safe mode"),)),
    Case("other-nameservice", (WARN, "hdfs.gone"), other_nameservice),
    Case(
        "python-on-another-nameservice",
        (FAIL, "hdfs.gone"),
        python_on_it,
        (Run(FAILS, CLOSED),),
        also=("yarn.python_archive",),
    ),
    Case(
        "no-python-archive",
        (FAIL, "yarn.python_archive"),
        lambda site: site.set(yarn__python_archive="hdfs:///no/such.tgz", yarn__python="bin/python3"),
        (Run(FAILS, r"/no/such\.tgz is not there"),),
    ),
]
OF_NODES = [
    Case(
        "no-python",
        (FAIL, "node"),
        lambda site: site.set(yarn__python="/no/such/python3"),
        (Run(FAILS, r"there is no /no/such/python3 on"),),
        on_node=True,
    ),
    Case(
        "root-on-nodes",
        (FAIL, "node.user"),
        without_operators_file,
        (Run(FAILS, r"the program would be root on this node"),),
        on_node=True,
    ),
    Case("root-on-nodes-allowed", (WARN, "node.user"), lambda site: None, on_node=True),
    Case(
        "noexec-on-nodes",
        (FAIL, "node.exec"),
        lambda site: remounted(site, "noexec"),
        (Run(FAILS, r"\(noexec\)"),),
        on_node=True,
    ),
    Case(
        "full-disk-of-nodes",
        (FAIL, "node"),
        full,
        (Run(FAILS, r"No space (available in any of the local directories|left on device)"),),
        on_node=True,
    ),
    Case("small-disk-of-nodes", (WARN, "node.disk"), lambda site: None, on_node=True),
    Case("few-open-files", (WARN, "node.files"), python_of_few_files, on_node=True),
    Case("no-recovery-of-nodes", (WARN, "node.recovery"), lambda site: None, on_node=True),
]
OF_SERVERS = [
    Case("ill-node", (WARN, "yarn.nodes.health"), lambda site: ill(site, "nm1")),
    Case("ill-nodes", (FAIL, "yarn.nodes"), lambda site: ill(site, *NODES), (Run(WAITS, r"no node"),)),
    Case(
        "closed-default-queue",
        (WARN, "yarn.queues"),
        lambda site: queues(site, "default"),
        (Run(SUCCEEDS, "", {"application": {"queue": "research"}}), Run(FAILS, r"default")),
    ),
    Case(
        "closed-queues",
        (FAIL, "yarn.queues"),
        lambda site: queues(site, "default", "research", "full", "locked"),
        (Run(FAILS, r"STOPPED|default"),),
    ),
    Case(
        "no-gpus-on-a-node",
        (WARN, "yarn.nodes.gpus"),
        lambda site: restarted(site, ("nm1",), "node-resources.xml", NO_GCORES),
    ),
    Case(
        "no-gpus-on-nodes",
        (FAIL, "yarn.nodes.gpus"),
        lambda site: restarted(site, tuple(NODES), "node-resources.xml", NO_GCORES),
        (Run(SUCCEEDS), Run(FAILS, r"gcores", GPU)),
    ),
]
CASES = [*OF_CLIENT, *OF_NODES, *OF_SERVERS]
CHOSEN = CASES if FULL else random.Random(seeds.FIRST).sample([*OF_CLIENT, *OF_NODES], 4)
"""All of them take 8 minutes."""


@pytest.mark.parametrize("case", parametrized(CHOSEN))
def test_the_doctor_and_an_application_agree_on_a_fault_of_a_cluster(case: Case, site: ClusterSite) -> None:
    check(case, site)
