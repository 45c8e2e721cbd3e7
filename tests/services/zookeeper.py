"""A real ZooKeeper on this machine: one server or an ensemble, each a JVM on free ports, of Debian's package.

``with ZooKeeper.start(servers=3) as ensemble`` ends it with the block, and with this process however that ends
(`tests.services.keeper`). Servers can be killed, paused and started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.values.launch_spec import ZOOKEEPER, LedgerSettings
from tests.services import keeper, needs
from tests.services.install import ZOOKEEPER_JAR
from tests.services.polling import PATIENCE_S
from tests.services.ports import held

JAR = Path(ZOOKEEPER_JAR)
ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 120.0
TICK_MS = 200
"""Two ticks are the shortest session that a server grants."""
MAX_SESSION_MS = 600_000
"""The longest; of 20 ticks a client on a busy machine would lose its connection in 3 s."""
SYNC_TICKS = 600
"""How long servers wait for one that is stopped: of 5 s a test that stops one could be stopped itself."""
JAVA_OPTIONS = (
    *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # quicker to start
)


NETTY = "".join(f":{JAR.parent}/netty-{part}.jar" for part in ("codec", "resolver"))
"""What the package's ZooKeeper needs for TLS besides what its manifest names."""


def _tls_settings(port: int, certificate: Path) -> str:
    stores = "".join(f"ssl.{kind}Store.location={certificate}\nssl.{kind}Store.type=PEM\n" for kind in ("key", "trust"))
    factory = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
    return f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n{factory}{stores}"


class NoZooKeeper(Exception):
    """A ZooKeeper cannot be had on this machine; the message says what is missing."""


class ZooKeeper:
    """An ensemble that is up, or about to be."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.directory, self.ports = directory, ports
        self.secure_ports: list[int] = []
        self.servers = [f"zk{number}" for number in range(1, len(ports) + 1)]
        self._lifeline: int | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return where each server answers clients."""
        return [("127.0.0.1", port) for port in self.ports]

    @property
    def ensemble(self) -> str:
        """Return it as clients are configured: ``127.0.0.1:…,127.0.0.1:…``."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    @property
    def secure(self) -> str:
        """Return the same for clients by TLS; empty: its servers have none."""
        return ",".join(f"127.0.0.1:{port}" for port in self.secure_ports)

    # ---- life ----

    @classmethod
    def start(
        cls,
        servers: int = 1,
        *,
        durable: bool = False,
        directory: Path | None = None,
        port: int | None = None,
        detached: bool = False,
        tls: Path | None = None,
    ) -> ZooKeeper:
        """Bring an ensemble up.

        Args:
            durable: each write is forced to the disk, as it must be where a machine may fail. Tests only kill
                processes, and should not take as long as others keep the disk busy.
            directory: for its files; default: a new temporary one. It goes with the ensemble.
            port: where the first answers clients, if it is free; default: any.
            detached: it stays when this process ends, until `down`.
            tls: a certificate with its key (PEM), by which the servers speak TLS on another port (`secure`). They
                require a certificate of their clients, and trust this one.

        Raises:
            NoZooKeeper: Java or the package is missing.
            TimeoutError: it did not become ready; the message has the end of a log.
        """
        needs.check("zookeeper")
        java = shutil.which("java")
        if java is None or not JAR.exists():
            raise NoZooKeeper(f"no {'java' if java is None else JAR}: apt-get install zookeeper")
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="dlapp-zookeeper-"))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sockets = [held()[1][0] for _ in range((4 if tls else 3) * servers)]
        if port is not None:
            with contextlib.suppress(OSError):
                sockets.insert(0, socket.create_server(("127.0.0.1", port)))
        ports = [item.getsockname()[1] for item in sockets]
        for item in sockets:
            item.close()
        zookeeper = cls(directory, ports[:servers])
        zookeeper.secure_ports = ports[3 * servers : 4 * servers]
        peers = "".join(
            f"server.{number + 1}=127.0.0.1:{ports[servers + 2 * number]}:{ports[servers + 2 * number + 1]}\n"
            for number in range(servers)
        )
        parts = {}
        for number, (name, port) in enumerate(zip(zookeeper.servers, zookeeper.ports, strict=True), 1):
            home = directory / f"{name}-files"
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(str(number))
            (home / "zoo.cfg").write_text(
                f"tickTime={TICK_MS}\ninitLimit=50\nsyncLimit={SYNC_TICKS}\ndataDir={home}/data\nclientPort={port}\n"
                f"maxSessionTimeout={MAX_SESSION_MS}\n"
                "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
                "4lw.commands.whitelist=srvr,ruok\n"
                "snapCount=1000000\nautopurge.purgeInterval=0\n"
                + (peers if servers > 1 else "")
                + (_tls_settings(zookeeper.secure_ports[number - 1], tls) if tls else "")
            )
            command = [
                *(java, *JAVA_OPTIONS, f"-Ddlapp.part={name}", "-Dzookeeper.preAllocSize=4096"),
                f"-Dzookeeper.forceSync={'yes' if durable else 'no'}",
                "-Dzookeeper.DigestAuthenticationProvider.digestAlg=SHA1",
                *("-cp", f"{home}:{JAR}{NETTY if tls else ''}"),
                *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg")),
            ]
            parts[name] = {"command": command, "environment": {"PATH": os.defpath, "LANG": "C.UTF-8"}}
        (directory / "parts.json").write_text(json.dumps(parts))
        zookeeper._start_keeper(detached)
        try:
            for name in zookeeper.servers:
                zookeeper.start_server(name)
            zookeeper.wait_until_ready()
        except BaseException:
            zookeeper.down()
            raise
        return zookeeper

    def _start_keeper(self, detached: bool) -> None:
        command, keep = [sys.executable, "-m", "tests.services.keeper", str(self.directory)], tuple[int, ...]()
        if not detached:
            end, self._lifeline = os.pipe()
            command, keep = [*command, str(end)], (end,)
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
        self._until("the keeper", (self.directory / "control").exists, READY_TIMEOUT_S)

    def __enter__(self) -> ZooKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End it, and remove its files."""
        with contextlib.suppress(ConnectionError):
            keeper.ask(self.directory, do="down")
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._keeper is not None:
            self._keeper.wait(120)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- servers ----

    def start_server(self, name: str) -> None:
        """Start one that does not run; returns before it is ready."""
        keeper.ask(self.directory, do="start", part=name)

    def kill_server(self, name: str) -> None:
        """SIGKILL one."""
        keeper.ask(self.directory, do="kill", part=name)

    def stop_server(self, name: str) -> None:
        """SIGTERM one and wait for its end."""
        keeper.ask(self.directory, do="stop", part=name)

    def pause_server(self, name: str) -> None:
        """SIGSTOP one: it keeps its connections and answers nothing."""
        os.kill(self._pid(name), signal.SIGSTOP)

    def resume_server(self, name: str) -> None:
        """SIGCONT it."""
        os.kill(self._pid(name), signal.SIGCONT)

    def mode(self, name: str) -> str:
        """standalone, leader or follower; empty: it does not serve."""
        return self._ask(name, "Mode")

    def connections(self, name: str) -> int:
        """Return how many clients are connected to a server, this question included; 0: it does not serve."""
        return int(self._ask(name, "Connections") or 0)

    def _ask(self, name: str, what: str) -> str:
        address = self.addresses[self.servers.index(name)]
        try:
            with socket.create_connection(address, timeout=10) as link:
                link.sendall(b"srvr")
                with link.makefile("rb") as answer:
                    output = answer.read().decode(errors="replace")
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in output.splitlines() if line.startswith(f"{what}: ")), "")

    def leader(self) -> str:
        """The server that leads, as soon as one does."""
        found: list[str] = []

        def look() -> bool:
            found.extend(name for name in self.servers if self.mode(name) in ("leader", "standalone"))
            return bool(found)

        self._until("a leader", look, READY_TIMEOUT_S)
        return found[0]

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until all servers serve."""
        self._until("the ensemble", lambda: all(self.mode(name) for name in self.servers), timeout_s)

    def transaction_logs(self, name: str = "zk1") -> list[Path]:
        """A server's log files, oldest first."""
        files = (self.directory / f"{name}-files" / "data" / "version-2").glob("log.*")
        return sorted(files, key=lambda file: int(file.suffix[1:], 16))

    def _pid(self, name: str) -> int:
        return int(keeper.ask(self.directory, do="status")[name]["pid"])

    def _until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "".join(
                    path.read_text(errors="replace")[-1500:] for path in sorted(self.directory.glob("*.log"))
                )
                raise TimeoutError(f"{what}: not ready after {timeout_s:.0f} s\n{logs}")
            time.sleep(0.02)


@contextlib.contextmanager
def zookeeper_for_tests(servers: int = 1, *, tls: Path | None = None) -> Iterator[ZooKeeper]:
    """An ensemble for a fixture: where it cannot be had its tests are skipped, with what is missing."""
    try:
        with ZooKeeper.start(servers, tls=tls) as ensemble:
            yield ensemble
    except NoZooKeeper as missing:
        pytest.skip(f"no ZooKeeper: {missing}")


def wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a ledger in this process wait for ZooKeeper as long as tests wait, not for some seconds."""
    from dlapp.gpuid.stores import short_hosts, zookeeper

    for module, name in ((zookeeper, "MIN_WAIT_S"), (zookeeper, "RELEASE_WAIT_S"), (short_hosts, "MAX_WAIT_S")):
        monkeypatch.setattr(module, name, PATIENCE_S)
    defaults = zookeeper.ZooKeeperLedger.record_of.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", PATIENCE_S)


def ledger_settings(
    ensemble: str,
    root: str = "/dlapp",
    credentials: str = "",
    session_timeout_s: float = 10.0,
    lock_dir: str = "/run/lock/dlapp",
) -> LedgerSettings:
    """Settings of a GPU ledger on an ensemble."""
    return LedgerSettings(
        ZOOKEEPER,
        lock_dir,
        ensemble=ensemble,
        root=root,
        credentials=credentials,
        session_timeout_s=session_timeout_s,
    )
