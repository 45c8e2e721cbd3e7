"""Faults of one machine with the embedded engine: dlapp-doctor and an application agree on each.

Each takes 3 to 10 s on two cores.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dlapp.doctor.findings import FAIL, WARN
from tests import seeds
from tests.doctor.cases import FAILS, SUCCEEDS, WAITS, Case, Run, Site, check, parametrized
from tests.services.containers.nvml_stub import StubDevice, seen_by_all, with_devices
from tests.services.disks import fill, small_disk
from tests.tiers import FULL

pytestmark = [pytest.mark.slow, pytest.mark.root("to mount disks")]
GPU = {"resources": {"gcores": 1}}
PEERS: Mapping[str, Mapping[str, object]] = {"resources": {"containers": 2}, "application": {"gang": "all"}}
IMAGE = {"application": {"docker_image": "busybox:1"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    return Site(tmp_path, monkeypatch)


# ---- what brings the faults about ----


def disk(site: Site, *, size_mib: int = 2048, options: str = "", is_full: bool = False) -> AbstractContextManager[None]:
    """Put the state directory on a disk of its own."""

    @contextlib.contextmanager
    def mounted() -> Iterator[None]:
        with small_disk(site.directory, size_mib=size_mib) as place:
            site.set(local__state_dir=place / "state")
            if options:
                subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)
            ballast = fill(place) if is_full else None
            try:
                yield
            finally:
                if ballast is not None:
                    ballast.unlink()

    return mounted()


def gpus(site: Site, *devices: StubDevice, init: int = 0) -> None:
    """Let all processes see GPUs; ``init`` is the driver's answer, 0: it works."""
    for name, text in seen_by_all(site.directory, devices).items():
        site.monkeypatch.setenv(name, text)
    with_devices(site.directory, devices, init=init)


def lock_dir(site: Site, mode: int, entry: str = "") -> None:
    """Make the directory of the GPU ledger, with a mode and a link in the place of an entry."""
    place = Path(os.environ["DLAPP_GPUID_LOCK_DIR"])
    place.mkdir()
    place.chmod(mode)
    gpus(site, StubDevice())
    if entry:
        (place / entry).symlink_to("nowhere")


def operators_file(site: Site, text: str) -> None:
    """Let the commands see a file of the operator in /etc/dlapp; nothing outside of them sees it."""
    upper = site.directory / "etc"
    (upper / "dlapp").mkdir(parents=True)
    (upper / "dlapp" / "node.yaml").write_text(text)
    mount = f'mount -t overlay -o lowerdir={upper}:/etc none /etc && exec "$@"'
    site.within = ["unshare", "--mount", "sh", "-c", mount, "sh"]


def without_bash(site: Site) -> None:
    programs = site.directory / "bin"
    programs.mkdir()
    for directory in ("/bin", "/usr/bin", "/usr/local/bin"):
        for path in Path(directory).iterdir():
            if path.name != "bash" and not (programs / path.name).is_symlink():
                (programs / path.name).symlink_to(path)
    site.monkeypatch.setenv("PATH", str(programs))


def older_shared_queue(site: Site) -> None:
    from dlapp.cluster.local.state import DATABASE, machine_name

    place = site.directory / "shared"
    (place / machine_name()).mkdir(parents=True)
    (place / machine_name() / DATABASE).touch()
    place.chmod(0o3770)
    site.set(local__state_dir=place, local__shared="true")


def state_file(site: Site) -> None:
    (site.directory / "state").touch()
    site.set(local__state_dir=site.directory / "state")


def zookeeper_away(site: Site) -> None:
    gpus(site, StubDevice())
    site.set(
        gpuid__zookeeper__ensemble="127.0.0.1:1", gpuid__zookeeper__credentials="none", gpuid__zookeeper__root="/dlapp"
    )


def mount_of_others(site: Site) -> None:
    """Let an operator's file name a mount below a directory that others may write."""
    place = site.directory / "open"
    (place / "data").mkdir(parents=True)
    place.chmod(0o777)
    operators_file(site, f"docker: {{mounts: [{place / 'data'}]}}\n")


CASES = [
    Case(
        "configuration",
        (FAIL, "config"),
        lambda site: site.set(local__memory="much"),
        (Run(FAILS, r"local\.memory"),),
    ),
    Case("unknown-variable", (WARN, "config.variable"), lambda site: site.monkeypatch.setenv("DLAPP_NO_SUCH_KEY", "1")),
    Case("notify-command", (WARN, "notify.command"), lambda site: site.set(notify__command="/no/such/program")),
    Case(
        "state-file",
        (FAIL, "local.state_dir"),
        state_file,
        (Run(FAILS, r"local\.state_dir"),),
        also=("local.capacity", "storage.cache"),
    ),
    Case("state-in-memory", (WARN, "local.state_dir.kept"), disk),
    Case("older-shared-queue", (WARN, "local.state_dir.before"), older_shared_queue),
    Case(
        "noexec",
        (FAIL, "local.state_dir.exec"),
        lambda site: disk(site, options="noexec"),
        (Run(FAILS, r"\(noexec\)"),),
    ),
    Case(
        "full-disk",
        (FAIL, "local.disk"),
        lambda site: disk(site, size_mib=16, is_full=True),
        (Run(FAILS, r"disk full: \S+ cannot be written"),),
    ),
    Case("little-space", (WARN, "local.disk"), lambda site: disk(site, size_mib=300)),
    Case("hardly-any-space", (WARN, "local.disk"), lambda site: disk(site, size_mib=24)),
    Case(
        "small-machine",
        (WARN, "local.capacity"),
        lambda site: site.set(local__memory="1g", defaults__memory="2g"),
        (Run(SUCCEEDS), Run(FAILS, r"local\.memory", {"resources": {"memory": "2g"}})),
    ),
    Case("cache-limit", (WARN, "storage.cache"), lambda site: site.set(storage__cache_limit="100000g")),
    Case("no-gpu-of-a-driver", (WARN, "gpu"), gpus),
    Case(
        "driver-that-does-not-work",
        (FAIL, "gpu.driver"),
        lambda site: gpus(site, StubDevice(), init=18),
        (Run(SUCCEEDS), Run(FAILS, r"Driver/library version mismatch", GPU)),
    ),
    Case(
        "gpu-with-errors",
        (WARN, "gpu.gpu0"),
        lambda site: gpus(site, StubDevice(ecc=2, recovery=None), StubDevice()),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case(
        "only-gpu-with-errors",
        (FAIL, "gpu.gpu0"),
        lambda site: gpus(site, StubDevice(ecc=2, recovery=None)),
        (Run(SUCCEEDS), Run(WAITS, r"2 uncorrectable ECC errors", GPU)),
    ),
    Case(
        "persistence-mode",
        (WARN, "gpu.persistence"),
        lambda site: gpus(site, StubDevice(persistence=0)),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case(
        "ledger-of-one-user",
        (WARN, "gpu.ledger.shared"),
        lambda site: lock_dir(site, 0o755),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case(
        "ledger-that-all-may-remove",
        (FAIL, "gpu.ledger"),
        lambda site: lock_dir(site, 0o777),
        (Run(SUCCEEDS), Run(FAILS, r"has mode 777: others can remove what is not theirs", GPU)),
    ),
    Case(
        "ledger-with-a-broken-entry",
        (WARN, "gpu.ledger.entry"),
        lambda site: lock_dir(site, 0o1777, "GPU-0"),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case("zookeeper-away", (WARN, "gpu.zookeeper"), zookeeper_away, (Run(SUCCEEDS, "", GPU),)),
    Case(
        "no-docker",
        (WARN, "docker"),
        lambda site: None,
        (Run(SUCCEEDS), Run(FAILS, r"docker\.sock", IMAGE)),
    ),
    Case(
        "docker-of-another-machine",
        (FAIL, "docker"),
        lambda site: site.set(runtime__docker__host="tcp://127.0.0.1:1"),
        (Run(SUCCEEDS), Run(FAILS, r"tcp://127\.0\.0\.1:1", IMAGE)),
    ),
    Case(
        "operators-file",
        (FAIL, "node"),
        lambda site: operators_file(site, "docker: {gpu_mode: cdi}\n"),
        (Run(FAILS, r"node\.yaml"),),
    ),
    Case("mount-of-others", (WARN, "node"), mount_of_others),
    Case("ports-of-the-kernel", (WARN, "node.ports"), lambda site: operators_file(site, "ports: 33000-34000\n")),
    Case(
        "no-interface",
        (FAIL, "node.interface"),
        lambda site: operators_file(site, "network_interface: nosuch0\n"),
        (Run(SUCCEEDS), Run(FAILS, r"no network interface nosuch0", PEERS)),
    ),
    Case("no-bash", (WARN, "payload.bash"), without_bash),
]


CHOSEN = CASES if FULL else random.Random(seeds.FIRST).sample(CASES, 12)
"""All of them take 2.5 minutes."""


@pytest.mark.parametrize("case", parametrized(CHOSEN))
def test_the_doctor_and_an_application_agree_on_a_fault_of_a_machine(case: Case, site: Site) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: the commands cannot see an operator's file of their own")
    check(case, site)
