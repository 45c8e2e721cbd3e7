"""Open MPI: the program runs in one container, the head, and its ``mpirun`` starts processes in all of them.

mpirun starts a daemon, orted, on each node of a hostfile through a remote shell, its agent. Here each node is a
container. Its name is not a host name, because Open MPI does not use the agent for a name of its own host. The head is
also a node, in addition to the one that mpirun uses for its own host, which runs nothing. The agent is dlapp's
(`dlapp.task.mpi`).

Two containers may share a host, so ports and interface are each container's own. mpirun gives its own ``OMPI_``
variables to all processes, where they replace those of the container; what differs is therefore set for the daemons
alone, and mpirun hands none of its parameters to them (``plm_rsh_pass_environ_mca_params``). Daemons and processes take
the first free port from the first one of the container upwards. For a minute after an mpirun the kernel keeps its ports
for connections that are closing; the next one goes beyond the last port of the container then.

Source: Open MPI 4.1, orte/mca/plm/rsh, orte/util/hostfile, orte/mca/oob/tcp, opal/mca/btl/tcp, orte/mca/odls/base,
opal/mca/btl/vader/btl_vader_component.c.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from dlapp.frameworks.participant import Participant
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import MAX_PORTS, Resources, RoleSpec

SERVICES = ()
_PORTS_OF_MPIRUN = 2
"""Number of ports of mpirun, one more than it needs. It binds every port that it may use, so it gets only these."""
_PORTS_OF_DAEMONS = 200
"""Size of the range of ports for daemons of MPI beyond the first one; each binds one."""
_LAST_PORT = 65_535
_CONCURRENT_AGENTS = 128
"""Open MPI's default. dlapp's agents live as long as the daemons, and mpirun waits for one to end before it starts
another."""


def success(_roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the roles that decide by default: all that are not services, which means the head (`AppSpec.head`)."""
    return ()


def problems(roles: Sequence[RoleSpec], deciding: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield programs that would never run."""
    together = [role for role in roles if role.name in deciding]
    for head, role in zip(together[:1] * len(together), together, strict=True):
        for key in ("script", "command", "args"):
            own = getattr(role, key)
            if own is not None and own != getattr(head, key):
                problem = f"is never run: with framework=mpi the program of role {head.name} starts all processes"
                yield f"role {role.name}.{key}", f"{problem}; remove it, or make the role a service"


def takes_part(role: str, deciding: Collection[str]) -> bool:
    """Return whether mpirun starts processes in the instances of a role."""
    return role in deciding


def conflict(_member: Member) -> str:
    """Return what to check if two programs listen on the port of a container; nothing is known of such programs."""
    return ""


def environment(_one: Participant) -> dict[str, str]:
    """Return the variables of every container: none."""
    return {}


def slots(roles: Sequence[RoleSpec]) -> dict[str, int]:
    """Return how many processes mpirun starts in each container: one for each GPU, or without GPUs one for each vcore.

    Args:
        roles: those that take part. If one has GPUs, a role without GPUs has no processes.
    """
    with_gpus = any(role.resources.gcores for role in roles)
    return {role.name: role.resources.gcores if with_gpus else role.resources.vcores for role in roles}


def processes(resources: Resources, _user: Mapping[str, str]) -> int:
    """Return the number of processes of a container."""
    return resources.gcores or resources.vcores


def ports(resources: Resources) -> int:
    """Return the default of `RoleSpec.ports`: one for each process and the daemon, and those of mpirun."""
    return min(MAX_PORTS, processes(resources, {}) + 1 + _PORTS_OF_MPIRUN)


def node(index: int) -> str:
    """Return Open MPI's name of a container. It uses letters, digits and "-", because a name is cut at its first
    dot.
    """
    return f"dlapp-container-{index}"


def index_of(name: str) -> int | None:
    """Return the CONTAINER_INDEX of a node; None if it is not a node's name."""
    digits = name.removeprefix(node(0)[:-1])
    is_index = digits.isascii() and digits.isdecimal() and len(digits) < 7 and name == node(int(digits))
    return int(digits) if is_index else None


def hostfile(roster: Roster, per_container: Mapping[str, int]) -> str:
    """Return the hostfile of an application, with the `slots` of each role's containers."""
    counts = {one.index: per_container.get(one.role, 0) for one in roster.members}
    return "".join(f"{node(index)} slots={count}\n" for index, count in counts.items() if count)


def head_variables(member: Member, directory: str, *, nodes: int, interface: str) -> dict[str, str]:
    """Return the settings with which mpirun reaches the containers, for the head's program.

    Args:
        member: the head.
        directory: the directory of `dlapp.task.mpi`, as the head sees it.
        nodes: lines of the hostfile.
        interface: name of the network interface with the member's address; empty if unknown.
    """
    found = {
        "plm": "rsh",
        "plm_rsh_agent": f"/bin/sh {directory}/agent.sh",
        "plm_rsh_no_tree_spawn": "1",
        "plm_rsh_pass_environ_mca_params": "0",
        "plm_rsh_num_concurrent": str(max(_CONCURRENT_AGENTS, nodes)),
        # A failed start of a daemon is detected only while the agent waits for it.
        "orte_leave_session_attached": "1",
        "orte_default_hostfile": f"{directory}/hostfile",
        # Containers share a host, and each daemon would bind its processes to the same first cores.
        "hwloc_base_binding_policy": "none",
        "rmaps_base_mapping_policy": "slot",
        # Node names are not host names. Without this each of them is looked up at the name servers.
        "opal_if_do_not_resolve": "1",
        **_daemon_network(member, ",".join(map(str, member.ports[:_PORTS_OF_MPIRUN])), interface),
    }
    # Whether a program may run as root is decided before (docker.root of node.yaml).
    # Open MPI 5 has other parameters, and would start all processes in the head. So its agent refuses.
    later = {"prte_default_hostfile": f"{directory}/hostfile", "plm_ssh_agent": found["plm_rsh_agent"]}
    later_variables = {f"PRTE_MCA_{name}": value for name, value in later.items()}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return _as_variables(found) | later_variables | root | {"DLAPP_MPI_NODE": node(member.index)}


def node_variables(member: Member, *, interface: str, kill_grace_s: float, shared_files: str | None) -> dict[str, str]:
    """Return the variables of one container's daemon, which its processes inherit.

    Args:
        member: the container.
        interface: name of the network interface with the member's address; empty if unknown.
        kill_grace_s: seconds between SIGTERM and SIGKILL. A daemon waits twice for half of them.
        shared_files: directory for memory that its processes share; None: Open MPI's choice, /dev/shm. There the names
            of the files have only the host, the user and a number made of mpirun's pid, and containers that share it
            could get the same.
    """
    first = member.ports[0]
    found = _daemon_network(member, f"{first}-{min(first + _PORTS_OF_DAEMONS, _LAST_PORT)}", interface)
    found["plm_rsh_agent"] = "/bin/sh"  # a daemon ends if it finds no ssh, although it starts no other daemon
    found["odls_base_sigkill_timeout"] = str(math.ceil(kill_grace_s / 2))
    found |= {f"btl_tcp_port_min_v{version}": str(first) for version in (4, 6)}
    found["btl_tcp_disable_family"] = str(_families(member)[1])
    if interface:
        found["btl_tcp_if_include"] = interface
    if shared_files is not None:
        found |= {"btl_vader_backing_directory": shared_files, "osc_sm_backing_directory": shared_files}
    return _as_variables(found)


def _families(member: Member) -> tuple[int, int]:
    """Return the IP version of a member's address, and the other one."""
    return (6, 4) if ":" in member.address else (4, 6)


def _daemon_network(member: Member, ports: str, interface: str) -> dict[str, str]:
    used, unused = _families(member)
    found = {f"oob_tcp_dynamic_ipv{used}_ports": ports, f"oob_tcp_disable_ipv{unused}_family": "1"}
    # They listen for both families nevertheless: but not for the other one on a port that they have already.
    found[f"oob_tcp_dynamic_ipv{unused}_ports"] = str(member.ports[0])
    return found | ({"oob_tcp_if_include": interface} if interface else {})


def _as_variables(parameters: Mapping[str, str]) -> dict[str, str]:
    return {f"OMPI_MCA_{name}": value for name, value in parameters.items()}
