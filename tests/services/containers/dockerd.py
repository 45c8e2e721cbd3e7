"""A Docker daemon for tests: its own data, state and socket, no network, and one image that is busybox.

It runs beside any other dockerd of the machine and touches nothing of it. It needs root.

It knows NVIDIA's ways to give containers GPUs, by stand-ins for NVIDIA's programs (`gpu_programs`): a
"GPU" is a device node that leads to /dev/null.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

import dlapp.net.dockerd
from tests.services import needs
from tests.services.containers import gpu_programs
from tests.services.install import SEARCH
from tests.services.polling import wait_until

IMAGE = "dlapp-test/busybox:1"
BARE_IMAGE = "dlapp-test/nothing:1"
"""An image without a shell."""
GPU_IMAGE = "dlapp-test/gpu:1"
"""The first, that wants all GPUs as CUDA's images do, and with an nvidia-smi."""

_TOOLS = (
    "cat date dd df echo env false grep head id kill ls mkdir mkfifo mknod nohup printf ps rm seq setsid sh sleep tail"
    " touch true wc whoami yes"
)
_START_S = 120.0


class Dockerd:
    """A dockerd in ``directory``, which should have a short name: a socket's path has 107 bytes."""

    def __init__(self, directory: Path, programs: Path | None = None) -> None:
        """``programs``: a directory with another dockerd and containerd; None: those that are installed."""
        self.directory = directory
        self.socket = directory / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.config: dict[str, object] = {}
        """daemon.json, for the next start."""
        self.within: list[str] = []
        """Words before its command, for the next start."""
        self.bridge = False
        """True: it has the network ``bridge``, for the next start."""
        self._search = SEARCH if programs is None else os.pathsep.join([str(programs), SEARCH])
        self._driver: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("dockerd", path=self._search)
        assert program is not None
        errors = []
        gpu_programs.install(self.directory)
        # Where the directory lies on an overlay itself, Docker's usual driver cannot work; vfs always can.
        for driver in ("overlay2", "vfs") if self._driver is None else (self._driver,):
            if self._start_with(program, driver):
                self._driver = driver
                return
            errors.append(self.log()[-2000:])
            self.stop()
        raise RuntimeError("dockerd does not start:\n" + "\n".join(errors))

    def _start_with(self, program: str, driver: str) -> bool:
        config = {"runtimes": {"nvidia": {"path": str(gpu_programs.runtime(self.directory))}}} | self.config
        (self.directory / "daemon.json").write_text(json.dumps(config))
        with open(self.directory / "dockerd.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.within,
                    program,
                    f"--config-file={self.directory}/daemon.json",
                    f"--data-root={self.directory}/data",
                    f"--exec-root={self.directory}/exec",
                    f"--pidfile={self.directory}/pid",
                    f"--host={self.host}",
                    f"--storage-driver={driver}",
                    *([] if self.bridge else ["--bridge=none"]),
                    "--iptables=false",
                    "--ip6tables=false",
                    "--ip-forward=false",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": os.pathsep.join([str(gpu_programs.hooks(self.directory)), self._search])},
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.socket.exists() and self.docker("version", check=False).returncode == 0:
                return True
            time.sleep(0.05)
        return False

    def docker(self, *words: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run the docker command against this daemon."""
        command = ["docker", "--host", self.host, *words]
        return subprocess.run(command, input=stdin, capture_output=True, check=check, timeout=240)

    def containers(self, *filters: str) -> list[str]:
        """Names of all containers, whatever their state, or of those that the filters leave (``label=dlapp.app``).

        By the API: tests look many times while they wait, and Docker's command would take half of a core for that.
        """
        chosen: dict[str, list[str]] = {}
        for filter_ in filters:
            kind, _, value = filter_.partition("=")
            chosen.setdefault(kind, []).append(value)
        query = {"all": 1, "filters": json.dumps(chosen)}
        found = dlapp.net.dockerd.Dockerd(self.host, 60.0).call("GET", "/containers/json", query=query)
        return [item["Names"][0].removeprefix("/") for item in found]

    def import_images(self) -> None:
        """Make the images."""
        busybox = shutil.which("busybox", path=SEARCH)
        assert busybox is not None
        self.docker("import", "-", IMAGE, stdin=_root_with(Path(busybox).read_bytes()))
        self.docker("import", "-", BARE_IMAGE, stdin=_root_with(None))
        changes = [
            "--change",
            "ENV NVIDIA_VISIBLE_DEVICES=all",
            "--change",
            "LABEL com.nvidia.volumes.needed=nvidia_driver",
        ]
        smi = {"bin/nvidia-smi": gpu_programs.NVIDIA_SMI.encode()}
        self.docker("import", *changes, "-", GPU_IMAGE, stdin=_root_with(Path(busybox).read_bytes(), smi))

    def log(self) -> str:
        """Return what the daemon says."""
        return (self.directory / "dockerd.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Return the process id of dockerd."""
        assert self._process is not None
        return self._process.pid

    def terminate(self) -> None:
        """End the daemon as a service is ended."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=120)

    def restart(self) -> None:
        """End the daemon as a service is ended, and start it again."""
        self.terminate()
        self.start()

    def kill(self) -> None:
        """SIGKILL to the daemon and its containerd, as a crash; what runs in containers goes on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        _kill_mentioning(f"{self.directory}/exec/containerd/containerd.toml")

    def stop(self) -> None:
        """End it and all that it started; may be repeated, also after `kill`."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # The shims of containers outlive a daemon that was killed; each names its containerd's address.
        _kill_mentioning(f"{self.directory}/exec/")
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(f"{self.directory}/"):
                subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def busybox_root(more: dict[str, bytes] | None = None) -> bytes:
    """A root file system with busybox and these files, as tar."""
    busybox = shutil.which("busybox", path=SEARCH)
    if busybox is None:
        pytest.skip("no busybox (make test installs it on Debian and Ubuntu)")
    return _root_with(Path(busybox).read_bytes(), more)


def _root_with(busybox: bytes | None, more: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777), ("proc", 0o755), ("etc", 0o755)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            tar.addfile(directory)
        if busybox is not None:
            program = tarfile.TarInfo("bin/busybox")
            program.size, program.mode = len(busybox), 0o755
            tar.addfile(program, io.BytesIO(busybox))
            for tool in _TOOLS.split():
                link = tarfile.TarInfo(f"bin/{tool}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        for name, text in (more or {}).items():
            script = tarfile.TarInfo(name)
            script.size, script.mode = len(text), 0o755
            tar.addfile(script, io.BytesIO(text))
    return out.getvalue()


def _kill_mentioning(text: str) -> None:
    """SIGKILL all processes with a text in their command lines, until there is none.

    A dockerd that is started takes a containerd that is not gone yet for one that lives.
    """

    def is_done() -> bool:
        found = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError):
                    if text.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                        os.kill(int(name), signal.SIGKILL)
                        found += 1
        return not found

    wait_until(is_done, what=f"no process has {text} in its command line")


def why_not() -> str | None:
    """Return why no daemon can be started here, in a line; None: it can."""
    if os.geteuid() != 0:
        return "a Docker daemon of the tests' own needs root"
    for program in ("dockerd", "docker", "busybox"):
        if shutil.which(program, path=SEARCH) is None:
            return f"no {program} (make test installs it on Debian and Ubuntu)"
    return None


@contextlib.contextmanager
def own_daemon(
    programs: Path | None = None,
    *,
    data_mib: int = 0,
    driver: Mapping[str, tuple[int, int]] | None = None,
    bridge: bool = False,
    config: Mapping[str, object] | None = None,
) -> Generator[Dockerd, None, None]:
    """A daemon for one test, which may kill it; ``config`` is of its daemon.json, ``data_mib`` its disk's size.

    Args:
        driver: the device nodes of a driver that this daemon sees; see `gpu_programs.with_driver`.
        bridge: it has the network ``bridge``, in a network namespace of its own.
    """
    needs.check("docker")
    if reason := why_not():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="dlapp-dockerd-"))
    daemon = Dockerd(directory, programs)
    daemon.config = dict(config or {})
    try:
        if driver is not None:
            daemon.within = gpu_programs.with_driver(directory, driver)
        if bridge:
            daemon.bridge, daemon.within = True, ["unshare", "--net"]
        if data_mib:
            (directory / "data").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={data_mib}m", "dlapp", directory / "data"], check=True)
        daemon.start()
        daemon.import_images()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def dockerd() -> Generator[Dockerd, None, None]:
    """One daemon for all tests of a process."""
    with own_daemon() as daemon:
        yield daemon
