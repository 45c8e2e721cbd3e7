"""Address, ports and roster of one container, through which payloads find each other.

Before the gate, it locks ports of its host and finds the address that peers connect to; both are sent to the
ApplicationMaster, which builds the roster from them. When the payload may start, the roster is complete: it is written
to two files in DLAPP_DIR, and to variables. A later version replaces the files while the payload runs. A payload in
Docker with the host's network has the names also in its /etc/hosts, so that it can resolve ``worker-0``.

The payload may change the files in DLAPP_DIR. They are its copies: dlapp never reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

from dlapp.errors import DlappError
from dlapp.node_policy import FILE as NODE_FILE
from dlapp.node_policy import NodePolicy
from dlapp.system.files import closing_fd, open_own_directory
from dlapp.system.network.addresses import address_of_interface, address_towards, interface_of
from dlapp.system.network.ports import LockedPorts, lock_ports
from dlapp.task.protocol.payload_files import replace_file
from dlapp.values.launch_spec import LaunchSpec
from dlapp.values.messages import Assignment
from dlapp.values.program.placeholders import HOSTS, MASTER, names_in
from dlapp.values.roster import Member, Roster
from dlapp.values.serialization import to_json
from dlapp.values.spec import Framework

ROSTER_FILE, HOSTS_FILE = "roster.json", "hosts"


class Rendezvous:
    """Rendezvous data of one container.

    Attributes:
        address: that peers connect to.
        written: the roster in the files; None if they do not exist yet.
    """

    def __init__(self, assignment: Assignment, launch: LaunchSpec, policy: NodePolicy, directory: str) -> None:
        self._assignment, self._launch, self._policy = assignment, launch, policy
        self._run, self._host_names = os.path.join(directory, "run"), os.path.join(directory, "etc-hosts")
        self._own_names: bytes | None = None  # lines of this host
        self._locked: LockedPorts | None = None
        self.address = ""
        self.written: Roster | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports that are locked for the payload."""
        return self._locked.ports if self._locked is not None else ()

    @property
    def lock_fds(self) -> tuple[int, ...]:
        """Return the descriptors that hold the locks; a payload that inherits them keeps its ports while it lives."""
        return () if self._locked is None else (self._locked.fd,)

    @property
    def interface(self) -> str:
        """Return the name of the network interface with the address; empty if unknown."""
        return self._policy.network_interface or interface_of(self.address)

    def reserve_ports(self) -> None:
        """Find the address and lock the ports. Idempotent: ports that are in use by then are replaced.

        Raises:
            DlappError, OSError: this node has no address for peers, or too few free ports.
        """
        self.address = node_address(self._launch, self._policy)
        former = self._locked
        if not self._assignment.ports or (former is not None and former.are_quiet()):
            return
        try:
            self._locked = lock_node_ports(self._assignment.ports, self._launch, self._policy)
        except DlappError:
            if former is None or former.taken_port() is not None:
                raise
        else:
            if former is not None:
                former.close()

    def own_environment(self) -> dict[str, str]:
        """Return the variables with the address and the first port of a payload that has ports."""
        return {"DLAPP_ADDRESS": self.address, "DLAPP_PORT": str(self.ports[0])}

    def peer_values(self, words: Sequence[str]) -> dict[str, str]:
        """Return the values of ``{hosts:ROLE}`` and ``{master}`` in some words, by the roster in the files.

        Raises:
            DlappError: a container is not in the roster.
        """
        values: dict[str, str] = {}
        for name in {name for word in words for name in names_in(word)}:
            if self.written is not None and name.startswith((HOSTS, MASTER)):
                from dlapp.frameworks.participant import endpoint

                if name.startswith(HOSTS):
                    values[name] = ",".join(map(endpoint, self.written.of_role(name.removeprefix(HOSTS))))
                elif name == MASTER and self._assignment.master is not None:
                    values[name] = endpoint(self._member_at(self.written, self._assignment.master))
        return values

    def check_ports(self) -> None:
        """Refuse to start if another process listens on a port that is locked for the payload. Raises DlappError."""
        if self._locked is not None and (port := self._locked.taken_port()) is not None:
            raise DlappError(f"another program listens on port {port}, which was locked for this container")

    def start_environment(self, roster: Roster | None, payload_run_dir: str) -> dict[str, str]:
        """Write the files of a roster, and return the variables of a payload that starts with it.

        Args:
            roster: the latest; None if the ApplicationMaster has none.
            payload_run_dir: DLAPP_DIR as the payload sees it.

        Raises:
            DlappError: this container is not in the roster.
            OSError: they cannot be written.
        """
        if roster is None:
            return {}
        one = self._assignment
        member = self._member_at(roster, one.index)
        self.write(roster)
        found = {"DLAPP_ROSTER": f"{payload_run_dir}/{ROSTER_FILE}"}
        if one.framework is Framework.NONE:
            return found
        from dlapp import frameworks

        return found | frameworks.environment(
            one.framework, roster, member, resources=one.resources, interface=self.interface, user=self._launch.env
        )

    def find_conflict(self, line: str) -> str:
        """Return what to check if two programs of this application want one port, by a line of the ended payload's log
        on an address that is in use; otherwise empty.
        """
        if self.written is None:
            return ""
        from dlapp.task.port_conflicts import explain_conflict, listener_here

        one = self._assignment
        listener_on = partial(listener_here, one.application_id)
        return explain_conflict(line, self.written, one.index, one.framework, listener_on)

    @staticmethod
    def _member_at(roster: Roster, index: int) -> Member:
        try:
            return roster.at(index)
        except LookupError as error:
            raise DlappError(str(error)) from error

    def write(self, roster: Roster) -> None:
        """Replace each file atomically by that of another roster. Raises OSError."""
        lines = [f"{one.address}\t{one.role}-{one.role_index}\n" for one in roster.members]
        with closing_fd(open_own_directory(self._run)) as where:
            replace_file(where, HOSTS_FILE, "".join(lines).encode())
            replace_file(where, ROSTER_FILE, json.dumps(to_json(roster)).encode() + b"\n")
        if os.path.exists(self._host_names):
            self._write_host_names("".join(lines).encode())
        self.written = roster

    def _write_host_names(self, names: bytes) -> None:
        """Write the names of all members after those of this host, which win. The file is mounted in the container and
        must stay the same one.
        """
        with open(self._host_names, "r+b") as file:
            if self._own_names is None:
                self._own_names = file.read()
            file.seek(0)
            file.write(self._own_names + names)
            file.truncate()

    def close(self) -> None:
        """Release the ports. Idempotent."""
        if self._locked is not None:
            self._locked.close()
            self._locked = None


def node_address(launch: LaunchSpec, policy: NodePolicy) -> str:
    """Return the address at which others reach this node. Raises DlappError: there is none."""
    if policy.network_interface is not None:
        try:
            return address_of_interface(policy.network_interface)
        except DlappError as error:
            raise DlappError(f"{error} (network_interface of {NODE_FILE})") from error
    urls = (launch.control_url, *launch.resource_managers)
    return address_towards([urlsplit(url).hostname or "" for url in urls])


def lock_node_ports(count: int, launch: LaunchSpec, policy: NodePolicy) -> LockedPorts:
    """Lock ports of this node. Raises DlappError, OSError: too few are free."""
    try:
        begin = int.from_bytes(os.urandom(4), "big")
        return lock_ports(count, policy.ports, launch.docker.lock_dir, begin=begin)
    except DlappError as error:
        raise DlappError(f"{error} (ports of {NODE_FILE})") from error
