"""Work of a task for a payload of framework=mpi."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from dlapp.errors import DlappError
from dlapp.frameworks import mpi
from dlapp.task.environment import DEFAULT_PATH
from dlapp.task.link.am_link import AmLink
from dlapp.task.mpi.files import DIRECTORY, MpiFiles, script
from dlapp.task.mpi.launches import HeadLaunches, MemberLaunches
from dlapp.values.launch_spec import LaunchSpec
from dlapp.values.messages import Assignment, MpiWork
from dlapp.values.roster import Roster

_MPIRUN = ("mpirun", "mpiexec", "orterun")
_SEPARATORS = " \t\n:"


class MpiPayload:
    """Task's part of the payloads of one container; each generation has one payload.

    Args:
        payload_run_dir: DLAPP_DIR as the payload sees it.

    Raises:
        DlappError: Open MPI cannot use the path.
    """

    def __init__(
        self,
        assignment: Assignment,
        work: MpiWork,
        launch: LaunchSpec,
        container_dir: str,
        payload_run_dir: str,
        note: Callable[[str], None],
    ) -> None:
        self._assignment, self._work, self._launch, self._container_dir = assignment, work, launch, container_dir
        self._note = note
        self._seen = f"{payload_run_dir}/{DIRECTORY}"
        if any(char in self._seen for char in _SEPARATORS):
            raise DlappError(f"{self._seen}: Open MPI takes no path with a space or a colon in it")
        self._files: MpiFiles | None = None
        self._launches: HeadLaunches | MemberLaunches | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command of the payload if it is not the user's program, which only the head runs; empty
        otherwise."""
        return () if self._assignment.index == self._work.head else ("/bin/sh", f"{self._seen}/member.sh")

    def begin(self, roster: Roster, interface: str, kill_grace_s: float) -> dict[str, str]:
        """Create the files of a payload, and return its variables.

        Args:
            interface: name of the network interface with the container's address; empty if unknown.

        Raises:
            OSError: the files cannot be made.
        """
        self.close()
        one, member = self._assignment, roster.at(self._assignment.index)
        is_plain = one.docker_image is None
        self._files = files = MpiFiles(os.path.join(self._container_dir, "run"))
        # Each Docker container has its own /dev/shm.
        shared_files = os.path.join(self._container_dir, "tmp") if is_plain else None
        variables = mpi.node_variables(
            member, interface=interface, kill_grace_s=kill_grace_s, shared_files=shared_files
        )
        files.write_variables(self._without_users(variables))
        if self.command:
            files.write_script("member.sh")
            self._launches = MemberLaunches(files, self._note)
            return {}
        hosts = mpi.hostfile(roster, self._work.slots)
        files.write("hostfile", hosts)
        files.write_script("agent.sh")
        self._launches = HeadLaunches(files, self._note)
        late = self._without_users(mpi.head_variables(member, self._seen, nodes=hosts.count("\n"), interface=interface))
        if is_plain:  # in Docker the workspace has the same path everywhere
            os.mkdir("bin", 0o700, dir_fd=files.fd)
            for name in _MPIRUN:
                files.write(f"bin/{name}", script("mpirun.sh"), 0o700)
            own = self._launch.env.get("PATH") or self._launch.environment.get("PATH") or DEFAULT_PATH
            late["PATH"] = f"{self._seen}/bin:{own}"
        return late

    def _without_users(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name not in self._launch.env}

    def fileno(self) -> int:
        """Return the descriptor to poll for `exchange`; only after `begin`."""
        assert self._launches is not None
        return self._launches.fileno()

    def exchange(self, link: AmLink, generation: int) -> None:
        """Exchange requests and orders between mpirun and the ApplicationMaster."""
        if self._launches is not None:
            self._launches.exchange(link, generation)

    def close(self) -> None:
        """Close all descriptors. Idempotent."""
        self._launches = None
        if self._files is not None:
            self._files.close()
            self._files = None
