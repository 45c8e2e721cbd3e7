"""The LinuxContainerExecutor of a test cluster: containers run as the users who submitted them.

Its NodeManagers run as a user of their own, and call a stand-in of Hadoop's container-executor (container_executor.c),
which is setuid root. The users are in no passwd of the machine, only in the NodeManagers' mount namespaces. For
``yarn.io/gpu`` a stand-in of nvidia-smi lists the GPUs, and YARN denies them in cgroups of the devices controller.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("container_executor.c")
NM_USER, NM_GROUP, NM_ID = "dlapp-nm", "dlapp-hadoop", 64100
"""User and group of the NodeManagers, with one number."""
GPU = "yarn.io/gpu"
_PREFIX = "yarn.nodemanager.linux-container-executor"
_CGROUPS = Path("/sys/fs/cgroup/devices")
_ENTER = (
    'mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/group && mount --bind "$3" "$4" && shift 4 && '
    f'exec setpriv --reuid={NM_ID} --regid={NM_ID} --clear-groups -- "$@"'
)


class LinuxExecutor:
    """Configuration of a cluster's NodeManagers for the LinuxContainerExecutor.

    Args:
        users: uid by name, on both nodes; see `without_account`.
        minors: by part, the minor numbers of the GPUs that YARN assigns.
        one_user: runs the containers of all submitters; None: each runs as its submitter.
        has_cgroup_v1: the NodeManagers see the devices controller, which is of cgroup v1.
    """

    def __init__(
        self,
        users: Mapping[str, int],
        *,
        minors: Mapping[str, Sequence[int]] | None = None,
        one_user: str | None = None,
        has_cgroup_v1: bool = True,
    ) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can run NodeManagers with the LinuxContainerExecutor")
        if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
            pytest.skip("no C compiler: the stand-in of container-executor cannot be made")
        if minors and not _CGROUPS.is_dir():
            pytest.skip("no devices controller of cgroup v1")
        self._compiler, self._users = compiler, users
        self._minors, self._one_user, self._has_cgroup_v1 = minors or {}, one_user, has_cgroup_v1
        self._groups: list[Path] = []

    def prepare(self, directory: Path, part: str, host: str) -> dict[str, str]:
        """Make what a NodeManager needs below the cluster's directory; return its yarn-site.xml."""
        directory.chmod(0o711)
        for name in (f"local-{host}", f"logs-{host}", f"tmp-{host}", f"recovery-{host}", part):
            (directory / name).mkdir(exist_ok=True)
            shutil.chown(directory / name, NM_ID, NM_ID)
        (directory / "jars").mkdir(exist_ok=True)
        self._write_accounts(directory, part)
        place = directory / f"executor-{part}"
        program = place / "bin" / "container-executor"
        program.parent.mkdir(parents=True)
        subprocess.run([self._compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
        os.chown(program, 0, NM_ID)
        program.chmod(0o6750)
        settings = {
            "yarn.nodemanager.container-executor.class": (
                "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor"
            ),
            f"{_PREFIX}.path": str(program),
            f"{_PREFIX}.group": NM_GROUP,
            f"{_PREFIX}.nonsecure-mode.limit-users": str(self._one_user is not None).lower(),
        }
        if self._one_user is not None:
            settings[f"{_PREFIX}.nonsecure-mode.local-user"] = self._one_user
        text = f"{_PREFIX}.group={NM_GROUP}\nmin.user.id=1000\nbanned.users=hdfs,yarn,mapred,bin\n"
        if minors := self._minors.get(part, ()):
            group = self._make_cgroup(part)
            smi = place / "bin" / "nvidia-smi"
            smi.write_text(f"#!/bin/sh\ncat <<'END'\n{_smi_xml(minors)}\nEND\n")
            smi.chmod(0o755)
            settings |= {
                "yarn.nodemanager.resource-plugins": GPU,
                "yarn.nodemanager.resource-plugins.gpu.path-to-discovery-executables": str(smi),
                f"{_PREFIX}.cgroups.hierarchy": f"/{group.name}",
            }
            text += f"[gpu]\nmodule.enabled=true\n[cgroups]\nroot={_CGROUPS.parent}\nyarn-hierarchy={group.name}\n"
        self.configuration(directory, part).parent.mkdir(parents=True)
        self.configuration(directory, part).write_text(text)
        (place / "bin").chmod(0o755)
        return settings

    @staticmethod
    def configuration(directory: Path, part: str) -> Path:
        """Return the container-executor.cfg of a NodeManager."""
        return directory / f"executor-{part}" / "etc" / "hadoop" / "container-executor.cfg"

    def command(self, directory: Path, part: str, jars: Path) -> list[str]:
        """Return what a NodeManager's command begins with: its namespace, with ``jars`` where all users may read them.

        The rest of the command finds the jars in ``directory / "jars"``.
        """
        script = _ENTER if self._has_cgroup_v1 else f"umount -l {_CGROUPS} && {_ENTER}"
        enter = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh"]
        return [
            *enter,
            *map(str, (directory / f"passwd-{part}", directory / f"group-{part}", jars, directory / "jars")),
        ]

    @contextlib.contextmanager
    def without_account(self, directory: Path, user: str) -> Iterator[None]:
        """Remove the account of a user from all nodes during a block; the user's containers run on."""
        files = [directory / f"passwd-{part}" for part in ("nm1", "nm2")]
        original = [file.read_text() for file in files]
        for one, text in zip(files, original, strict=True):
            # In place: the file is mounted.
            one.write_text("".join(line for line in text.splitlines(True) if not line.startswith(f"{user}:")))
        try:
            yield
        finally:
            for one, text in zip(files, original, strict=True):
                one.write_text(text)

    def clean(self) -> None:
        """Remove the cgroups, in which nothing runs any more."""
        for group in self._groups:
            for below in [*group.glob("*/"), group]:
                with contextlib.suppress(OSError):
                    below.rmdir()
        self._groups.clear()

    def _write_accounts(self, directory: Path, part: str) -> None:
        users = {NM_USER: NM_ID, **self._users}
        entries = "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in users.items())
        groups = f"{NM_GROUP}:x:{NM_ID}:\n" + "".join(f"{name}:x:{uid}:\n" for name, uid in self._users.items())
        for name, more in ("passwd", entries), ("group", groups):
            (directory / f"{name}-{part}").write_text(Path("/etc", name).read_text() + more)

    def _make_cgroup(self, part: str) -> Path:
        group = Path(tempfile.mkdtemp(prefix=f"dlapp-tests-{part}-", dir=_CGROUPS))
        self._groups.append(group)
        shutil.chown(group, NM_ID, NM_ID)
        return group


def _smi_xml(minors: Sequence[int]) -> str:
    """Return what ``nvidia-smi -x -q`` prints, as far as Hadoop reads it. Source: GpuDeviceInformationParser."""
    gpus = "".join(
        f'<gpu id="00000000:{place + 1:02X}:00.0"><product_name>NVIDIA Test Card</product_name>'
        f"<uuid>GPU-{place:08d}-aaaa-bbbb-cccc-000000000000</uuid><minor_number>{minor}</minor_number>"
        "<fb_memory_usage><total>16384 MiB</total><used>0 MiB</used><free>16384 MiB</free></fb_memory_usage>"
        "<utilization><gpu_util>0 %</gpu_util><memory_util>0 %</memory_util></utilization>"
        "<temperature><gpu_temp>40 C</gpu_temp><gpu_temp_max_threshold>90 C</gpu_temp_max_threshold>"
        "<gpu_temp_slow_threshold>85 C</gpu_temp_slow_threshold></temperature></gpu>"
        for place, minor in enumerate(minors)
    )
    return (
        '<?xml version="1.0" ?><nvidia_smi_log><driver_version>535.0</driver_version>'
        f"<attached_gpus>{len(minors)}</attached_gpus>{gpus}</nvidia_smi_log>"
    )
