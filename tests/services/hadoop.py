"""A real Hadoop on this machine: python -m tests.services.hadoop up|down|status|start PART|stop PART|kill PART

NameNode, DataNode, ResourceManager, two NodeManagers and the ApplicationHistoryServer with the timeline service, each
a JVM of its own, made of the jars that Maven Central has (fetched once into ``~/.cache/dlapp-tests``). Needs Java 11 or
later, and Maven for the first time; no root, no Hadoop installation and no line in /etc/hosts.

The configuration is docs/hadoop/*.xml, the files that operators copy, with addresses, directories and sizes of one
small machine over it: so what the documentation says is what the tests run on. The nodes have addresses of their own
(127.0.1.1 and 127.0.1.2), which are their host names too; each offers 4 GiB, 8 vcores and 4 gcores.

``DLAPP_TEST_HADOOP`` names another version than the usual one (``make test-versions``).

``up`` uses YARN's usual ports and stays until ``down``; a ZooKeeper comes with it, and a configuration of dlapp that
names both. Tests get a cluster of their own on free ports, or the one that is up; parts can be killed and started again
by both.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.services import keeper, needs
from tests.services.executor.linux_executor import LinuxExecutor
from tests.services.install import nvidia_devices
from tests.services.ports import held
from tests.services.zookeeper import NoZooKeeper, ZooKeeper

DEFAULT_VERSION = "3.4.2"
VERSION = os.environ.get("DLAPP_TEST_HADOOP", DEFAULT_VERSION)
IS_HADOOP_2 = VERSION.startswith("2.")
# Read at import: the tests give each test a home of its own.
CACHE = Path(os.environ.get("DLAPP_TEST_CACHE") or Path.home() / ".cache" / "dlapp-tests")
UP_DIRECTORY = Path(tempfile.gettempdir()) / f"dlapp-hadoop-{os.getuid()}"
UP_ZOOKEEPER, UP_ZOOKEEPER_PORT = "zookeeper", 2181
UP_CONFIG = "dlapp.yaml"
"""In `UP_DIRECTORY`: what makes dlapp use the cluster that is up."""
ROOT = Path(__file__).resolve().parents[2]
NODES = {"nm1": "127.0.1.1", "nm2": "127.0.1.2"}
NODE_MEMORY_MIB, NODE_VCORES, NODE_GCORES = 4096, 8, 4
_GCORES = "yarn.nodemanager.resource-type.gcores"
READY_TIMEOUT_S = 120.0

ARTIFACTS = (
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-hdfs:test-jar",  # it alone has the web pages without which a NameNode does not start
    "hadoop-hdfs-client",
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-timelineservice",  # the ResourceManager loads a class of it
    "hadoop-yarn-server-applicationhistoryservice",
    "hadoop-yarn-client",
    # The Java peer of the benchmarks, which run on this version alone; not all others are published with it.
    *(("hadoop-yarn-applications-distributedshell",) if VERSION == DEFAULT_VERSION else ()),
)
ROUTER_ARTIFACTS = ("hadoop-hdfs-rbf", "hadoop-federation-balance", "hadoop-distcp")
"""Of the part ``router`` alone."""
KMS_ARTIFACTS = ("hadoop-kms",)
"""Of the part ``kms`` alone."""
HADOOP_2 = (("org.codehaus.jackson", "jackson-jaxrs", "1.9.13"), ("org.codehaus.jackson", "jackson-xc", "1.9.13"))
"""Libraries as a release 2 has them. Maven finds older ones, with which its ResourceManager ends at the first event
that it sends to the timeline server."""
MAIN = {
    "nn": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "nn2": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "nn3": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "jn": "org.apache.hadoop.hdfs.qjournal.server.JournalNode",
    "dn": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "dn2": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "dn3": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "rm": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "rm2": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nm1": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "nm2": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "ahs": "org.apache.hadoop.yarn.server.applicationhistoryservice.ApplicationHistoryServer",
    "router": "org.apache.hadoop.hdfs.server.federation.router.DFSRouter",
    "kms": "org.apache.hadoop.crypto.key.kms.server.KMSWebServer",
    "reader": "org.apache.hadoop.yarn.server.timelineservice.reader.TimelineReaderServer",
}
PARTS = tuple(part for part in MAIN if part not in ("nn2", "nn3", "jn", "dn2", "dn3", "rm2", "router", "kms", "reader"))
"""What makes a usual cluster. With ``nn2`` the NameNodes share their edits, and all wait to be made active: by a
directory, or with ``jn`` by a JournalNode, from which they read what is not finished, but ``nn3``, which lags. With
``rm2`` the ResourceManagers keep their state in ZooKeeper, by which they fail over (`with_zookeeper`). With
``reader`` Timeline Service v2, with its store of files, takes the place of the timeline server."""
NAMENODES = ("nn", "nn2", "nn3")
RESOURCEMANAGERS = ("rm", "rm2")
DATANODES = ("dn", "dn2", "dn3")
# Files have one replica where a test asks for no more. A DataNode that is silent is avoided after 3 s, dead after 12 s.
QUICK_TO_NOTICE = {
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
    "dfs.namenode.stale.datanode.interval": "3000",
    "dfs.namenode.avoid.read.stale.datanode": "true",
    "dfs.namenode.avoid.write.stale.datanode": "true",
    "dfs.namenode.redundancy.interval.seconds": "1s",
    # A copy that a DataNode could not take, as it had just died, is made again after this time; usually five minutes.
    "dfs.namenode.reconstruction.pending.timeout-sec": "10",
    "dfs.client.retry.window.base": "100",
}
RECOVERY = {
    "yarn.nodemanager.recovery.enabled": "true",
    # The ResourceManager is not to give up a NodeManager while that starts again.
    "yarn.nm.liveness-monitor.expiry-interval-ms": "120000",
}
"""Of a cluster's yarn-site.xml: its NodeManagers find their containers again, as documented for operators."""
_MONITOR = "yarn.resourcemanager.monitor.capacity.preemption"
PREEMPTION = {
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    f"{_MONITOR}.monitoring_interval": "1000",
    f"{_MONITOR}.max_wait_before_kill": "12000",
    f"{_MONITOR}.total_preemption_per_round": "1.0",
    f"{_MONITOR}.natural_termination_factor": "1.0",
}
"""What a queue lacks of its capacity it is given at once by those that use more than theirs."""


def with_zookeeper(ensemble: str) -> dict[str, str]:
    """Return settings of yarn-site.xml for two ResourceManagers: their ZooKeeper, and short times."""
    return {
        "hadoop.zk.address": ensemble,
        "yarn.resourcemanager.zk-address": ensemble,
        "yarn.resourcemanager.zk-timeout-ms": "3000",
        "hadoop.zk.timeout-ms": "3000",
        "yarn.resourcemanager.store.class": f"{_RECOVERY}.ZKRMStateStore",
        # One that is stopped keeps its connections. The tests stop it for 20 s.
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.timeline-service.enabled": "false",
        "yarn.system-metrics-publisher.enabled": "false",
        "yarn.resourcemanager.system-metrics-publisher.enabled": "false",
    }


_RECOVERY = "org.apache.hadoop.yarn.server.resourcemanager.recovery"
NAMESERVICE = "dlapp"
EXCLUDED = "excluded"
"""File with the hosts that an operator has removed."""

# Quick to start and small, rather than fast later: a test cluster lives for minutes on two cores.
JAVA_OPTIONS = (
    "-Xmx400m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",  # a third of the processor time of a cluster's start
    "-XX:-UsePerfData",  # a file in /tmp, which stays when the JVM is killed
    "-Djava.net.preferIPv4Stack=true",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.util", "java.io", "java.net", "java.nio", "sun.net.dns")
    ),
)
LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""

_QUEUE = "yarn.scheduler.capacity.root"
QUEUES = {
    f"{_QUEUE}.queues": "default,research,closed,full,locked",
    f"{_QUEUE}.closed.capacity": "0",
    f"{_QUEUE}.closed.state": "STOPPED",
    f"{_QUEUE}.full.capacity": "0",
    f"{_QUEUE}.full.maximum-applications": "0",
    f"{_QUEUE}.locked.capacity": "0",
    f"{_QUEUE}.locked.maximum-applications": "10",
    f"{_QUEUE}.acl_administer_queue": " ",
    f"{_QUEUE}.acl_submit_applications": " ",
    f"{_QUEUE}.default.acl_submit_applications": "*",
    f"{_QUEUE}.research.acl_submit_applications": "*",
    f"{_QUEUE}.closed.acl_submit_applications": "*",
    f"{_QUEUE}.full.acl_submit_applications": "*",
    f"{_QUEUE}.locked.acl_submit_applications": "nobody",
}
"""Beside the two that are documented one each that is stopped, full, and closed to all but one user."""

USUAL_PORTS = {
    "nn": 8020, "nn_http": 9870, "dn": 9866, "dn_http": 9864, "dn_ipc": 9867,
    "rm": 8032, "rm_scheduler": 8030, "rm_tracker": 8031, "rm_admin": 8033, "rm_http": 8088,
    "nm": 8041, "nm_localizer": 8040, "nm_http": 8042, "ahs": 10200, "ahs_http": 8188,
}  # fmt: skip
MORE_PORTS = (
    *(
        "nn2",
        "nn2_http",
        "nn3",
        "nn3_http",
        "jn",
        "jn_http",
        "dn2",
        "dn2_http",
        "dn2_ipc",
        "dn3",
        "dn3_http",
        "dn3_ipc",
    ),
    *("rm2", "rm2_scheduler", "rm2_tracker", "rm2_admin", "rm2_http"),
    *("router", "router_http", "router_admin", "kms", "reader"),
)
"""Of parts that only a test's own cluster has."""


class NoHadoop(Exception):
    """A Hadoop cannot be had on this machine; the message says what is missing."""


def java() -> str:
    """Path of a java that Hadoop runs on. Raises NoHadoop."""
    path = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else None
    found = shutil.which(path or "java")
    if found is None:
        raise NoHadoop("no java: install a JDK or JRE of version 11 or later, or set JAVA_HOME")
    output = subprocess.run([found, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < 11:
        raise NoHadoop(f"{found} is {output.partition(chr(10))[0]}: 11 or later is needed")
    return found


def library(name: str = "lib", artifacts: tuple[str, ...] = ARTIFACTS) -> Path:
    """Directory of the jars, fetched on first use by one process while others wait. Raises NoHadoop."""
    target = CACHE / f"hadoop-{VERSION}" / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(target, artifacts)
    return target


def _fetch(target: Path, artifacts: tuple[str, ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoHadoop(f"no mvn to fetch the jars of Hadoop {VERSION} with, and none in {target}")
    dependencies = ""
    for group, artifact, version in (
        *(("org.apache.hadoop", item, VERSION) for item in artifacts),
        *(HADOOP_2 if IS_HADOOP_2 else ()),
    ):
        name, _, kind = artifact.partition(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{f'<type>{kind}</type>' if kind else ''}</dependency>\n"
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        Path(work, "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>dlapp</groupId><artifactId>hadoop-for-tests</artifactId><version>1</version>"
            f"<packaging>pom</packaging><dependencies>\n{dependencies}</dependencies></project>"
        )
        print(f"fetching jars of Hadoop {VERSION} (at most 90 MiB, once) into {target}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise NoHadoop(f"mvn could not fetch Hadoop {VERSION}: {(done.stdout + done.stderr)[-500:]}")
        if IS_HADOOP_2:
            # Of the two that Maven finds its Jersey knows the older.
            for newer in Path(work, "lib").glob("asm-[4-9]*.jar"):
                newer.unlink()
        # Whole or not at all: whoever sees the directory uses it.
        os.rename(Path(work, "lib"), target)


def free_ports() -> dict[str, int]:
    """A free port for each that a cluster needs. The nodes' are tried on their own addresses."""
    sockets, ports = [], {}
    for name in (*USUAL_PORTS, *MORE_PORTS):
        ports[name], more = held(list(NODES.values()) if name.startswith("nm") else ["127.0.0.1"])
        sockets += more
    for socket in sockets:
        socket.close()
    return ports


class Hadoop:
    """A cluster that is up, or about to be: its addresses, and what can be done to its parts.

    ``with Hadoop.start() as cluster`` ends it with the block, and with this process however that ends.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports: dict[str, int] = json.loads((directory / "ports.json").read_text())
        self._datanodes = 1
        self._executor: LinuxExecutor | None = None
        self._lifeline: int | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    # ---- addresses ----

    @property
    def configuration(self) -> Path:
        """The HADOOP_CONF_DIR of a client."""
        return self.directory / "conf"

    @property
    def rm_url(self) -> str:
        """The ResourceManager's web address; of two, of the first, which on standby redirects to the other."""
        return f"http://127.0.0.1:{self.ports['rm_http']}"

    @property
    def timeline_url(self) -> str:
        """The timeline server's web address."""
        return f"http://127.0.0.1:{self.ports['ahs_http']}"

    @property
    def timeline_reader_url(self) -> str:
        """The web address of the reader of Timeline Service v2."""
        return f"http://127.0.0.1:{self.ports['reader']}"

    @property
    def hdfs_url(self) -> str:
        """The NameNode's web address; WebHDFS is under /webhdfs/v1."""
        return f"http://127.0.0.1:{self.ports['nn_http']}"

    @property
    def scheduler_address(self) -> tuple[str, int]:
        """Return where an ApplicationMaster calls the ResourceManager."""
        return "127.0.0.1", self.ports["rm_scheduler"]

    @property
    def nodes(self) -> list[str]:
        """Node ids as YARN writes them: ``host:port``."""
        return [f"{host}:{self.ports['nm']}" for host in NODES.values()]

    # ---- life ----

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        *,
        ports: dict[str, int] | None = None,
        settings: dict[str, dict[str, str]] | None = None,
        detached: bool = False,
        wait: bool = True,
        parts: tuple[str, ...] = PARTS,
        name_cache: str = "name",
        executor: LinuxExecutor | None = None,
    ) -> Hadoop:
        """Bring a cluster up.

        Args:
            directory: for its files; default: a new temporary one, removed with the cluster.
            ports: what is not in it gets a free one.
            settings: file name -> property -> value, over all others.
            detached: it stays when this process ends, until `down`.
            wait: return when it is ready.
            parts: those that are started; ``("nn", "dn")`` is HDFS alone.
            name_cache: the empty file system to begin with; those of different names have different block pools.
            executor: the NodeManagers run containers as their users; None: as their own.

        Raises:
            NoHadoop: Java or the jars are missing.
            TimeoutError: it did not become ready; the message has the end of the logs.
        """
        if parts:
            needs.check("hadoop")
        runtime, jars = java(), library()
        classes = f"{jars}/*" + (f":{library('lib-router', ROUTER_ARTIFACTS)}/*" if "router" in parts else "")
        classes += f":{library('lib-kms', KMS_ARTIFACTS)}/*" if "kms" in parts else ""
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="dlapp-hadoop-"))
        readable = f"{directory}/jars/*"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "ports.json").write_text(json.dumps({**free_ports(), **(ports or {})}))
        (directory / EXCLUDED).touch()
        cluster = cls(directory)
        cluster._executor = executor
        cluster._datanodes = sum(part in DATANODES for part in parts)
        namenodes = tuple(namenode for namenode in NAMENODES if namenode in parts)
        cluster._write_configuration(settings or {}, namenodes, parts)
        own = (*NODES, *DATANODES[1:], *NAMENODES[1:], *(RESOURCEMANAGERS if "rm2" in parts else ()))
        commands = {
            part: {
                # What a server unpacks for itself, its pages and its native libraries, goes with the cluster.
                "command": [
                    *(cluster._beginning(part, jars) if part in NODES else ()),
                    *(runtime, *JAVA_OPTIONS, f"-Ddlapp.part={part}", f"-Djava.io.tmpdir={directory / part}"),
                    *(
                        (f"-Dkms.config.dir={conf}", f"-Dlog4j.configuration=file:{conf}/log4j.properties")
                        if part == "kms"
                        else ()
                    ),
                    *("-cp", f"{conf}:{classes if executor is None or part not in NODES else readable}", MAIN[part]),
                ],
                "environment": _environment(),
            }
            for part in MAIN
            for conf in [directory / (f"conf-{part}" if part in own else "conf")]
        }
        (directory / "parts.json").write_text(json.dumps(commands))
        cluster._format_hdfs(runtime, jars, name_cache)
        if "router" in parts:  # does not start without its pages, which no jar has
            (cluster.configuration / "webapps" / "router").mkdir(parents=True, exist_ok=True)
        for namenode in namenodes[1:]:
            # Each begins with what the first has, and the shared edits with none.
            shutil.copytree(directory / "name", directory / f"name-{namenode}")
        if len(namenodes) > 1:
            version = (directory / "name" / "current" / "VERSION").read_text()
            edits = directory / "edits" / (NAMESERVICE if "jn" in parts else "") / "current"
            (edits / "paxos" if "jn" in parts else edits).mkdir(parents=True)
            kind = "JOURNAL_NODE" if "jn" in parts else "NAME_NODE"
            (edits / "VERSION").write_text(version.replace("storageType=NAME_NODE", f"storageType={kind}"))
        if "jn" in parts:
            (cluster.configuration / "webapps" / "journal").mkdir(parents=True, exist_ok=True)
        cluster._start_keeper(detached)
        for part in parts:
            cluster.start_part(part)
        if wait:
            try:
                cluster.wait_until_ready(parts=parts)
            except BaseException:
                cluster.down()
                raise
        return cluster

    def _start_keeper(self, detached: bool) -> None:
        command = [sys.executable, "-m", "tests.services.keeper", str(self.directory)]
        keep: tuple[int, ...] = ()
        if not detached:
            end, self._lifeline = os.pipe()
            command.append(str(end))
            keep = (end,)
        with open(self.directory / "keeper.log", "ab") as log:
            self._keeper = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=keep,
            )
        for item in keep:
            os.close(item)
        self._until("the keeper", lambda: (self.directory / "control").exists(), READY_TIMEOUT_S)

    def __enter__(self) -> Hadoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End it: all parts at once, then what runs on its nodes, then its files."""
        with contextlib.suppress(ConnectionError):
            keeper.ask(self.directory, do="down")
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._keeper is not None:
            self._keeper.wait(120)
        if self._executor is not None:
            self._executor.clean()
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- parts ----

    def start_part(self, part: str) -> None:
        """Start a part that does not run; returns before it is ready."""
        keeper.ask(self.directory, do="start", part=part)

    def start_datanodes(self) -> None:
        """Start all three DataNodes, where one ran so far, and wait until the NameNode knows them."""
        for part in DATANODES[self._datanodes :]:
            self.start_part(part)
        self._datanodes = len(DATANODES)
        self._until("the DataNodes", self._hdfs_ready, READY_TIMEOUT_S)

    def wait_for_datanode(self, part: str) -> None:
        """Wait until a DataNode that was started again serves the NameNode, which may not know that it was away."""

        def serves() -> bool:
            url = f"http://127.0.0.1:{self.ports[f'{part}_http']}/jmx?qry=Hadoop:service=DataNode,name=DataNodeInfo"
            beans = self.get(url)["beans"]
            return bool(beans) and '"ActorState":"RUNNING"' in str(beans[0]["BPServiceActorInfo"])

        self._until(part, serves, READY_TIMEOUT_S)
        self._until("the DataNodes", self._hdfs_ready, READY_TIMEOUT_S)

    def stop_part(self, part: str) -> None:
        """SIGTERM a part and wait for its end, some seconds."""
        keeper.ask(self.directory, do="stop", part=part)

    def kill_part(self, part: str) -> None:
        """SIGKILL a part; what a NodeManager had started runs on."""
        keeper.ask(self.directory, do="kill", part=part)

    def pause_part(self, part: str) -> None:
        """SIGSTOP a part: it keeps its connections and answers nothing."""
        os.kill(self.status()[part]["pid"], signal.SIGSTOP)

    def resume_part(self, part: str) -> None:
        """SIGCONT it."""
        os.kill(self.status()[part]["pid"], signal.SIGCONT)

    def url_of(self, manager: str) -> str:
        """Return the web address of one of two ResourceManagers."""
        return f"http://127.0.0.1:{self.ports[f'{manager}_http']}"

    def state_of(self, manager: str) -> str:
        """Return the state of one of two ResourceManagers: ACTIVE or STANDBY; empty: it does not answer."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = self.get(f"{self.url_of(manager)}/ws/v1/cluster/info", timeout_s=1.0)["clusterInfo"]
            return str(found["haState"])
        return ""

    def wait_until_both_serve(self) -> str:
        """Wait until one of two ResourceManagers is active, with all nodes, and the other on standby; return it."""

        def is_ready() -> bool:
            if sorted(map(self.state_of, RESOURCEMANAGERS)) != ["ACTIVE", "STANDBY"]:
                return False
            return self.nodes_ready()

        self._until("both ResourceManagers", is_ready, READY_TIMEOUT_S)
        return next(
            resourcemanager for resourcemanager in RESOURCEMANAGERS if self.state_of(resourcemanager) == "ACTIVE"
        )

    def make_active(self, part: str) -> None:
        """Make this one of several NameNodes serve; no other may."""
        self._transition("-transitionToActive", "--forceactive", part)

    def make_observer(self, part: str) -> None:
        """Make a NameNode on standby answer reads."""
        self._transition("-transitionToObserver", part)

    def make_standby(self, part: str) -> None:
        """Make a NameNode wait."""
        self._transition("-transitionToStandby", part)

    def _transition(self, *arguments: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (problem := self._run_tool("org.apache.hadoop.hdfs.tools.DFSHAAdmin", *arguments)) is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{' '.join(arguments)} failed: {problem}")
            time.sleep(0.5)

    def _run_tool(self, tool: str, *arguments: str) -> str | None:
        """Run one of Hadoop's command lines, which says yes to its questions; return its error, None: none."""
        command = [java(), *JAVA_OPTIONS, "-cp", f"{self.configuration}:{library()}/*", tool, *arguments]
        done = subprocess.run(
            command, env=_environment(), input="Y\n", capture_output=True, text=True, cwd=self.directory
        )
        return done.stderr[-2000:] if done.returncode else None

    def decommission(self, *parts: str, timeout_s: int | None = None) -> None:
        """Exclude these NodeManagers, and no others, from the cluster.

        Args:
            parts: names of NodeManagers; none: all may come back.
            timeout_s: how long their containers may run (``-g``); None: they end at once.
        """
        (self.directory / EXCLUDED).write_text("".join(f"{NODES[part]}\n" for part in parts))
        how = [] if timeout_s is None else ["-g", str(timeout_s), "-server"]
        if problem := self._run_tool("org.apache.hadoop.yarn.client.cli.RMAdminCLI", "-refreshNodes", *how):
            raise RuntimeError(f"-refreshNodes {' '.join(how)} failed: {problem}")

    def status(self) -> dict[str, Any]:
        """Process id and exit status (None: it runs) of each part that was ever started."""
        return keeper.ask(self.directory, do="status")

    def log(self, part: str) -> str:
        """Return what a part wrote so far."""
        return (self.directory / f"{part}.log").read_text(errors="replace")

    # ---- readiness ----

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S, *, parts: tuple[str, ...] = PARTS) -> None:
        """Wait until work can be done: HDFS takes files, both nodes run and offer gcores, the history answers."""
        deadline = time.monotonic() + timeout_s
        for part, what, ready in (
            ("dn", "HDFS", self._hdfs_ready),
            ("nm2", "the nodes", self.nodes_ready),
            ("ahs", "the timeline server", lambda: bool(self.get(f"{self.timeline_url}/ws/v1/timeline"))),
            ("reader", "the timeline reader", self._reader_ready),
        ):
            if part in parts:
                self._until(what, ready, deadline - time.monotonic())

    def nodes_ready(self) -> bool:
        """Return whether every node runs and shows the gcores that it was configured with."""
        listed = (self.get(f"{self.rm_url}/ws/v1/cluster/nodes").get("nodes") or {}).get("node", [])
        gcores = [
            kind["value"]
            for node in listed
            if node["state"] == "RUNNING"
            # Hadoop 2 has no total; nothing runs yet.
            for amounts in [node.get("totalResource") or node["availableResource"]]
            for kind in amounts["resourceInformations"]["resourceInformation"]
            if kind["name"] == "gcores"
        ]
        return gcores == [self.node_gcores()] * len(NODES)

    def version(self) -> str:
        """Return which Hadoop this is, as its ResourceManager says."""
        return str(self.get(f"{self.rm_url}/ws/v1/cluster/info")["clusterInfo"]["resourceManagerVersion"])

    def node_gcores(self) -> int:
        """Return how many gcores each node offers."""
        return int(read_configuration(self.directory / "conf-nm1" / "node-resources.xml")[_GCORES] or 0)

    def _reader_ready(self) -> bool:
        return bool(self.get(f"{self.timeline_reader_url}/ws/v2/timeline/?user.name={getpass.getuser()}"))

    def _hdfs_ready(self) -> bool:
        user = getpass.getuser()
        for path, permission in (("/tmp", "1777"), ("/tmp/logs", "1777"), ("/user", "755"), (f"/user/{user}", "755")):
            self.get(
                f"{self.hdfs_url}/webhdfs/v1{path}?op=MKDIRS&permission={permission}&user.name={user}", method="PUT"
            )
        beans = self.get(f"{self.hdfs_url}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystem")["beans"]
        return bool(beans) and beans[0]["NumLiveDataNodes"] == self._datanodes

    def get(self, url: str, method: str = "GET", *, timeout_s: float = 60.0) -> Any:
        """The JSON that ``url`` answers with."""
        request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def _until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline, last = time.monotonic() + timeout_s, ""
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (OSError, ValueError, KeyError) as error:
                last = str(error)
            if (self.directory / "control").exists():
                dead = [part for part, one in self.status().items() if one["exit"] is not None]
                if dead:
                    raise TimeoutError(f"{dead[0]} ended: {self.log(dead[0])[-2000:]}")
            time.sleep(0.1)
        raise TimeoutError(f"{what}: not ready after {timeout_s:.0f} s ({last}); logs are in {self.directory}")

    # ---- files ----

    def _beginning(self, part: str, jars: Path) -> list[str]:
        """Return what a NodeManager's command begins with."""
        if self._executor is not None:
            return self._executor.command(self.directory, part, jars)
        return _where_programs_may_be_root(self.directory)

    def make_home(self, user: str) -> None:
        """Make a user's home directory on HDFS."""
        base, me = f"{self.hdfs_url}/webhdfs/v1/user/{user}", getpass.getuser()
        self.get(f"{base}?op=MKDIRS&permission=700&user.name={me}", method="PUT")
        urllib.request.urlopen(
            urllib.request.Request(f"{base}?op=SETOWNER&owner={user}&group={user}&user.name={me}", method="PUT"),
            timeout=60,
        ).close()

    def _write_configuration(
        self, settings: dict[str, dict[str, str]], namenodes: tuple[str, ...], parts: tuple[str, ...]
    ) -> None:
        managers = RESOURCEMANAGERS if "rm2" in parts else ()
        hosts = dict.fromkeys(("", *DATANODES[1:], *namenodes[1:], *managers), "127.0.0.1") | NODES
        for part, host in hosts.items():
            directory = self.directory / (f"conf-{part}" if part else "conf")
            directory.mkdir(exist_ok=True)
            (directory / "log4j.properties").write_text(LOG4J)
            own = self._settings(host)
            if part in DATANODES:
                own["hdfs-site.xml"] |= self._of_datanode(part)
            if part in NODES and self._executor is not None:
                own["yarn-site.xml"] |= self._executor.prepare(self.directory, part, host)
            if "reader" in parts:
                own["yarn-site.xml"] |= self._of_timeline_reader()
            if managers:
                own["yarn-site.xml"] |= self._of_two_resourcemanagers(part if part in managers else "")
            if "kms" in parts:
                provider = f"kms://http@127.0.0.1:{self.ports['kms']}/kms"
                own["core-site.xml"]["hadoop.security.key.provider.path"] = provider
                _write_xml(directory / "kms-site.xml", self._of_kms())
                operations = ("MANAGEMENT", "GENERATE_EEK", "DECRYPT_EEK", "READ")
                _write_xml(
                    directory / "kms-acls.xml", {f"default.key.acl.{operation}": "*" for operation in operations}
                )
            if len(namenodes) > 1:
                own["core-site.xml"]["fs.defaultFS"] = f"hdfs://{NAMESERVICE}"
                own["hdfs-site.xml"] |= self._of_several_namenodes(
                    part if part in namenodes else "nn", namenodes, journal="jn" in parts
                )
            for source in sorted((ROOT / "docs" / "hadoop").glob("*.xml")):
                properties = read_configuration(source) | own.get(source.name, {}) | settings.get(source.name, {})
                _write_xml(directory / source.name, properties)

    def _settings(self, host: str) -> dict[str, dict[str, str]]:
        port, me, here = self.ports, getpass.getuser(), self.directory
        local = "127.0.0.1"
        return {
            "core-site.xml": {
                "fs.defaultFS": f"hdfs://{local}:{port['nn']}",
                "hadoop.tmp.dir": f"{here}/tmp-{host}",
                "hadoop.http.staticuser.user": me,
                f"hadoop.proxyuser.{me}.hosts": "*",
                f"hadoop.proxyuser.{me}.groups": "*",
            },
            "hdfs-site.xml": {
                "dfs.replication": "1",
                "dfs.namenode.name.dir": f"file://{here}/name",
                "dfs.datanode.data.dir": f"file://{here}/data",
                "dfs.namenode.http-address": f"{local}:{port['nn_http']}",
                "dfs.datanode.address": f"{local}:{port['dn']}",
                "dfs.datanode.http.address": f"{local}:{port['dn_http']}",
                "dfs.datanode.ipc.address": f"{local}:{port['dn_ipc']}",
                "dfs.datanode.hostname": local,
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.namenode.safemode.extension": "0",
                "dfs.namenode.acls.enabled": "true",  # the default from Hadoop 3.3 on
                "dfs.federation.router.rpc-address": f"{local}:{port['router']}",
                "dfs.federation.router.admin-address": f"{local}:{port['router_admin']}",
                "dfs.federation.router.http-address": f"{local}:{port['router_http']}",
                # A small file's close waits this long where the NameNode does not know its block yet; usually 400 ms.
                "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
                "dfs.client.block.write.locateFollowingBlock.retries": "10",
            },
            "node-resources.xml": {_GCORES: str(NODE_GCORES)},
            "capacity-scheduler.xml": QUEUES,
            "yarn-site.xml": {
                "yarn.resourcemanager.hostname": local,
                "yarn.resourcemanager.address": f"{local}:{port['rm']}",
                "yarn.resourcemanager.scheduler.address": f"{local}:{port['rm_scheduler']}",
                "yarn.resourcemanager.resource-tracker.address": f"{local}:{port['rm_tracker']}",
                "yarn.resourcemanager.admin.address": f"{local}:{port['rm_admin']}",
                "yarn.resourcemanager.webapp.address": f"{local}:{port['rm_http']}",
                "yarn.resourcemanager.fs.state-store.uri": f"file://{here}/state",
                "yarn.node-attribute.fs-store.root-dir": f"file://{here}/attributes",
                "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
                **PREEMPTION,
                "yarn.nm.liveness-monitor.expiry-interval-ms": "8000",
                # A NodeManager that gives up ends what runs there, and is not there when the ResourceManager is back.
                "yarn.resourcemanager.connect.max-wait.ms": "600000",
                "yarn.resourcemanager.connect.retry-interval.ms": "500",
                "yarn.resourcemanager.nodes.exclude-path": f"{here}/{EXCLUDED}",
                "yarn.acl.enable": "true",
                "yarn.admin.acl": me,
                "yarn.scheduler.maximum-allocation-mb": str(NODE_MEMORY_MIB),
                "yarn.scheduler.maximum-allocation-vcores": str(NODE_VCORES),
                "yarn.nodemanager.hostname": host,
                # A NodeManager that a test kills is to leave its containers to nobody; `RECOVERY` changes that.
                "yarn.nodemanager.recovery.enabled": "false",
                "yarn.nodemanager.recovery.dir": f"{here}/recovery-{host}",
                "yarn.nodemanager.address": f"{host}:{port['nm']}",
                "yarn.nodemanager.localizer.address": f"{host}:{port['nm_localizer']}",
                "yarn.nodemanager.webapp.address": f"{host}:{port['nm_http']}",
                "yarn.nodemanager.local-dirs": f"{here}/local-{host}",
                "yarn.nodemanager.log-dirs": f"{here}/logs-{host}",
                "yarn.nodemanager.resource.memory-mb": str(NODE_MEMORY_MIB),
                "yarn.nodemanager.resource.cpu-vcores": str(NODE_VCORES),
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
                "yarn.nodemanager.resource-monitor.interval-ms": "500",
                # Logs of running applications are collected, of those that ask for it.
                "yarn.nodemanager.log-aggregation.roll-monitoring-interval-seconds": "3",
                "yarn.nodemanager.log-aggregation.roll-monitoring-interval-seconds.min": "3",
                "yarn.timeline-service.hostname": local,
                "yarn.timeline-service.address": f"{local}:{port['ahs']}",
                "yarn.timeline-service.http-address": f"{local}:{port['ahs_http']}",
                "yarn.timeline-service.webapp.address": f"{local}:{port['ahs_http']}",
                "yarn.timeline-service.leveldb-timeline-store.path": f"{here}/timeline",
                "yarn.timeline-service.leveldb-state-store.path": f"{here}/timeline",
                "yarn.log.server.url": f"{self.timeline_url}/applicationhistory/logs",
                "yarn.log.server.web-service.url": f"{self.timeline_url}/ws/v1/applicationhistory",
            },
        }

    def _of_datanode(self, part: str) -> dict[str, str]:
        return {
            "dfs.datanode.data.dir": f"file://{self.directory}/data-{part}",
            "dfs.datanode.address": f"127.0.0.1:{self.ports[part]}",
            "dfs.datanode.http.address": f"127.0.0.1:{self.ports[f'{part}_http']}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{self.ports[f'{part}_ipc']}",
        }

    def _of_several_namenodes(self, part: str, namenodes: tuple[str, ...], *, journal: bool) -> dict[str, str]:
        """A nameservice of several that share their edits; who is active is said by hand."""
        local, journal_port = "127.0.0.1", self.ports["jn"]
        found = {
            "dfs.nameservices": NAMESERVICE,
            f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(namenodes),
            f"dfs.client.failover.proxy.provider.{NAMESERVICE}": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.namenode.shared.edits.dir": f"file://{self.directory}/edits",
            "dfs.namenode.name.dir": f"file://{self.directory}/name{'' if part == 'nn' else f'-{part}'}",
            "dfs.ha.namenode.id": part,
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1",
        }
        if journal:
            found |= {
                "dfs.namenode.shared.edits.dir": f"qjournal://{local}:{journal_port}/{NAMESERVICE}",
                "dfs.journalnode.edits.dir": f"{self.directory}/edits",
                "dfs.journalnode.rpc-address": f"{local}:{journal_port}",
                "dfs.journalnode.http-address": f"{local}:{self.ports['jn_http']}",
                "dfs.ha.tail-edits.in-progress": "true",
                "dfs.ha.tail-edits.period": "1h" if part == "nn3" else "100ms",
            }
        for namenode in namenodes:
            found[f"dfs.namenode.rpc-address.{NAMESERVICE}.{namenode}"] = f"{local}:{self.ports[namenode]}"
            found[f"dfs.namenode.http-address.{NAMESERVICE}.{namenode}"] = f"{local}:{self.ports[f'{namenode}_http']}"
        return found

    def _of_two_resourcemanagers(self, part: str) -> dict[str, str]:
        """Return what makes them fail over by themselves; ``part`` empty: of a client, or a NodeManager."""
        prefix = "yarn.resourcemanager"
        found = {
            f"{prefix}.ha.enabled": "true",
            f"{prefix}.ha.rm-ids": ",".join(RESOURCEMANAGERS),
            f"{prefix}.cluster-id": NAMESERVICE,
            "yarn.client.failover-sleep-base-ms": "200",
            "yarn.client.failover-sleep-max-ms": "1000",
            **({f"{prefix}.ha.id": part} if part else {}),
        }
        for resourcemanager in RESOURCEMANAGERS:
            for name, port in (
                ("address", resourcemanager),
                ("scheduler.address", f"{resourcemanager}_scheduler"),
                ("resource-tracker.address", f"{resourcemanager}_tracker"),
                ("admin.address", f"{resourcemanager}_admin"),
                ("webapp.address", f"{resourcemanager}_http"),
            ):
                found[f"{prefix}.{name}.{resourcemanager}"] = f"127.0.0.1:{self.ports[port]}"
        return found

    def _of_timeline_reader(self) -> dict[str, str]:
        """Timeline Service v2 with the store of files: it has no flows, which only HBase has."""
        storage = "org.apache.hadoop.yarn.server.timelineservice.storage"
        collector = "yarn.nodemanager.aux-services"
        return {
            "yarn.timeline-service.version": "2.0f",
            "yarn.timeline-service.reader.webapp.address": f"127.0.0.1:{self.ports['reader']}",
            "yarn.timeline-service.reader.class": f"{storage}.FileSystemTimelineReaderImpl",
            "yarn.timeline-service.writer.class": f"{storage}.FileSystemTimelineWriterImpl",
            "yarn.timeline-service.fs-writer.root-dir": f"file://{self.directory}/timeline-v2",
            "yarn.system-metrics-publisher.enabled": "true",
            collector: "timeline_collector",
            f"{collector}.timeline_collector.class": (
                "org.apache.hadoop.yarn.server.timelineservice.collector.PerNodeTimelineCollectorsAuxService"
            ),
        }

    def _of_kms(self) -> dict[str, str]:
        """A server that keeps keys, without a password, for everybody."""
        return {
            "hadoop.kms.key.provider.uri": f"jceks://file@{self.directory}/keys",
            "hadoop.kms.authentication.type": "simple",
            "hadoop.kms.http.host": "127.0.0.1",
            "hadoop.kms.http.port": str(self.ports["kms"]),
            f"hadoop.kms.proxyuser.{getpass.getuser()}.users": "*",
            f"hadoop.kms.proxyuser.{getpass.getuser()}.hosts": "*",
        }

    def _format_hdfs(self, runtime: str, jars: Path, kept_name: str) -> None:
        """An empty file system; made once and copied from then on, it is a JVM's start saved."""
        name = self.directory / "name"
        if name.exists():
            return
        cached = CACHE / f"hadoop-{VERSION}" / kept_name
        if not cached.is_dir():
            command = [runtime, *JAVA_OPTIONS, "-cp", f"{self.configuration}:{jars}/*", MAIN["nn"]]
            done = subprocess.run(
                [*command, "-format", "-nonInteractive"],
                env=_environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise TimeoutError(f"the NameNode could not be formatted: {done.stderr[-2000:]}")
            with contextlib.suppress(OSError):  # another process may have been first
                shutil.copytree(name, cached.with_name(f"name-{os.getpid()}"))
                os.rename(cached.with_name(f"name-{os.getpid()}"), cached)
        else:
            shutil.copytree(cached, name)


def read_configuration(path: Path) -> dict[str, str]:
    """Property -> value of one Hadoop configuration file."""
    return {
        (item.findtext("name") or "").strip(): (item.findtext("value") or "").strip()
        for item in ElementTree.parse(path).getroot().iter("property")
    }


def _write_xml(path: Path, properties: dict[str, str]) -> None:
    root = ElementTree.Element("configuration")
    for name, value in properties.items():
        one = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(one, "name").text = name
        ElementTree.SubElement(one, "value").text = value
    ElementTree.ElementTree(root).write(path, encoding="utf-8")


def _where_programs_may_be_root(directory: Path) -> list[str]:
    """Return what a NodeManager's command begins with where it is root's, so that programs are root: an operator's file
    that allows it, in an /etc of the cluster's own. What is mounted later outside is seen inside."""
    if os.geteuid() != 0:
        return []
    etc = directory / "etc"
    if not etc.exists():
        subprocess.run(["cp", "-a", "/etc", etc], check=True)
        (etc / "dlapp").mkdir(exist_ok=True)
        (etc / "dlapp" / "node.yaml").write_text("docker: {root: true}\n")
    mount = 'mount --bind "$0" /etc && exec "$@"'
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", mount, str(etc)]


def _environment() -> dict[str, str]:
    """Return what the servers, and so the containers, see: no variable of the caller that could matter to them."""
    inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
    return inherited | {"HADOOP_USER_NAME": getpass.getuser()}


@contextlib.contextmanager
def cluster_for_tests() -> Iterator[Hadoop]:
    """The cluster that is up, else one that ends with the block. Raises NoHadoop."""
    with contextlib.suppress(OSError, ValueError):
        cluster = Hadoop(UP_DIRECTORY) if _is_ours() else None
        if cluster is not None:
            running = [part for part, one in cluster.status().items() if one["exit"] is None]
            cluster._datanodes = len(set(running) & set(DATANODES))
        if cluster is not None and cluster.node_gcores() == NODE_GCORES and cluster.version() == VERSION:
            cluster.wait_until_ready()
            yield cluster
            return
    with Hadoop.start(settings={"hdfs-site.xml": QUICK_TO_NOTICE}) as cluster:
        yield cluster


def _is_ours() -> bool:
    """Return whether the directory of the cluster that is up, if it is there, was put there by nobody else."""
    with contextlib.suppress(FileNotFoundError):
        found = UP_DIRECTORY.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return True


def up(ports: dict[str, int] | None = None) -> int:
    """A cluster that stays, with a ZooKeeper, and the configuration of both; the exit code."""
    with contextlib.suppress(OSError, ValueError):
        Hadoop(UP_DIRECTORY).status()
        print(f"Error: a cluster is up already, in {UP_DIRECTORY}", file=sys.stderr)
        return 1
    down()
    began = time.monotonic()
    try:
        # What a user asks for is given: without a GPU no file that leaves gcores to us gets one.
        settings = {"node-resources.xml": {_GCORES: str(nvidia_devices())}, "hdfs-site.xml": QUICK_TO_NOTICE}
        cluster = Hadoop.start(UP_DIRECTORY, ports=ports, settings=settings, detached=True)
    except (NoHadoop, TimeoutError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    gpuid = ""
    try:
        zookeeper = ZooKeeper.start(
            durable=True, directory=UP_DIRECTORY / UP_ZOOKEEPER, port=UP_ZOOKEEPER_PORT, detached=True
        )
    except (NoZooKeeper, TimeoutError) as error:
        print(f"Warning: applications that ask for gcores will be refused: {error}", file=sys.stderr)
    else:
        credentials = UP_DIRECTORY / "credentials"
        credentials.touch(mode=0o600)
        credentials.write_text(f"dlapp:{secrets.token_hex(16)}\n")
        gpuid = f"gpuid:\n  zookeeper:\n    ensemble: {zookeeper.ensemble}\n    credentials: {credentials}\n"
    # The nodes are this machine, so they have the Python that this runs on.
    config = UP_DIRECTORY / UP_CONFIG
    config.write_text(f"cluster: yarn\nyarn:\n  conf_dir: {cluster.configuration}\n  python: {sys.executable}\n{gpuid}")
    print(
        f"Warning: every user of this machine can submit to this cluster, and that runs as {getpass.getuser()}: "
        "use it where you are alone",
        file=sys.stderr,
    )
    print(f"Hadoop {VERSION} is up after {time.monotonic() - began:.0f} s: {cluster.rm_url}")
    print(f"export DLAPP_CONFIG={config}")
    print(f"export HADOOP_CONF_DIR={cluster.configuration}")
    return 0


def down() -> bool:
    """End the cluster that is up, and its ZooKeeper, and remove their files; False: there is none."""
    if not UP_DIRECTORY.is_dir():
        return False
    # Each on its own: one of them may not have come up.
    ZooKeeper(UP_DIRECTORY / UP_ZOOKEEPER, []).down()
    with contextlib.suppress(FileNotFoundError):
        Hadoop(UP_DIRECTORY).down()
    shutil.rmtree(UP_DIRECTORY, ignore_errors=True)
    return True


def main(argv: list[str]) -> int:
    """The command line."""
    if not _is_ours():
        print(f"Error: {UP_DIRECTORY} is not a directory of yours; remove it", file=sys.stderr)
        return 1
    match argv:
        case ["up"]:
            return up(USUAL_PORTS)
        case ["down"]:
            if not down():
                print("no cluster is up")
            return 0
        case ["status"]:
            try:
                parts = Hadoop(UP_DIRECTORY).status()
            except OSError:
                print("no cluster is up")
                return 1
            for part, one in parts.items():
                print(f"{part:4} {one['pid']:>8} {'runs' if one['exit'] is None else 'ended ' + str(one['exit'])}")
            return 0
        case ["start" | "stop" | "kill" as do, part] if part in PARTS:
            keeper.ask(UP_DIRECTORY, do=do, part=part)
            return 0
    print(__doc__.partition("\n")[0], file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
