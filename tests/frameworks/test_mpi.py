"""Test the variables of Open MPI, and the rules for the roles of framework=mpi."""

from __future__ import annotations

import pytest

from dlapp import frameworks
from dlapp.frameworks import mpi
from dlapp.value import replace
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import MAX_PORTS, AppSpec, Framework, Gang, Resources, RoleSpec

NODES = ("worker", 0, "node1"), ("worker", 1, "node1"), ("board", 0, "node2")


def roster() -> Roster:
    members = (
        Member(role=role, role_index=n, index=index, host=host, address="10.0.0.1", ports=(20_010, 20_012, 20_013))
        for index, (role, n, host) in enumerate(NODES)
    )
    return Roster(generation=0, version=0, members=tuple(members))


def role(name: str, instances: int = 1, *, gcores: int = 0, vcores: int = 4, **more: object) -> RoleSpec:
    resources = Resources(gcores=gcores, vcores=vcores)
    return RoleSpec(name=name, instances=instances, resources=resources, **{"ports": 1, **more})  # type: ignore[arg-type]


def problems(*roles: RoleSpec) -> list[str]:
    found = frameworks.problems(Framework.MPI, roles, gang=Gang.ALL, success=())
    return [f"{key}: {problem}" for key, problem in found]


def test_each_container_is_a_node_of_its_own_also_where_two_share_a_host() -> None:
    assert mpi.hostfile(roster(), {"worker": 4}) == "dlapp-container-0 slots=4\ndlapp-container-1 slots=4\n"


def test_a_container_without_processes_is_no_node() -> None:
    assert mpi.hostfile(roster(), {"worker": 0, "board": 1}) == "dlapp-container-2 slots=1\n"


def test_a_process_for_each_gpu_and_without_gpus_for_each_vcore() -> None:
    assert mpi.slots([role("worker", gcores=2)]) == {"worker": 2}
    assert mpi.slots([role("worker")]) == {"worker": 4}
    assert mpi.slots([role("start"), role("worker", gcores=8)]) == {"start": 0, "worker": 8}


def test_the_processes_of_a_container_share_its_vcores() -> None:
    assert frameworks.processes(Framework.MPI, Resources(vcores=8, gcores=2), {}) == 2
    assert frameworks.processes(Framework.MPI, Resources(vcores=8), {}) == 8


def test_a_variable_that_the_user_sets_stays() -> None:
    of = roster()
    found = frameworks.environment(
        Framework.MPI,
        of,
        of.at(0),
        resources=Resources(vcores=8),
        interface="eth0",
        user={"NCCL_SOCKET_IFNAME": "mine"},
    )
    assert found == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_a_container_has_a_port_for_each_process_and_three_for_mpirun_and_its_daemon() -> None:
    assert frameworks.ports(Framework.MPI, Resources(vcores=8)) == 11
    assert frameworks.ports(Framework.MPI, Resources(vcores=8, gcores=2)) == 5
    assert frameworks.ports(Framework.MPI, Resources(vcores=500)) == MAX_PORTS
    assert [frameworks.ports(item, Resources(vcores=8)) for item in (Framework.NONE, Framework.PYTORCH)] == [0, 1]


def test_mpirun_gets_its_agent_nodes_interface_and_two_ports() -> None:
    found = mpi.head_variables(roster().at(0), "/dlapp/run/mpi", nodes=200, interface="eth1")
    assert {name: value for name, value in found.items() if "ip" in name or "rsh" in name or "hostfile" in name} == {
        "PRTE_MCA_prte_default_hostfile": "/dlapp/run/mpi/hostfile",
        "OMPI_MCA_plm_rsh_agent": "/bin/sh /dlapp/run/mpi/agent.sh",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_plm_rsh_pass_environ_mca_params": "0",
        "OMPI_MCA_plm_rsh_num_concurrent": "200",
        "OMPI_MCA_orte_default_hostfile": "/dlapp/run/mpi/hostfile",
        "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "20010,20012",
        "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "20010",
        "OMPI_MCA_oob_tcp_disable_ipv6_family": "1",
    }
    assert found["OMPI_MCA_oob_tcp_if_include"] == "eth1"
    assert found["DLAPP_MPI_NODE"] == "dlapp-container-0"
    # mpirun gives these to all processes, in place of those of their own containers.
    assert not any("btl" in name for name in found)


def test_a_daemon_and_its_processes_have_the_ports_and_the_interface_of_their_own_container() -> None:
    found = mpi.node_variables(roster().at(1), interface="eth1", kill_grace_s=5, shared_files="/tmp/x")
    assert found == {
        "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "20010-20210",
        "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "20010",
        "OMPI_MCA_oob_tcp_disable_ipv6_family": "1",
        "OMPI_MCA_oob_tcp_if_include": "eth1",
        "OMPI_MCA_btl_tcp_if_include": "eth1",
        "OMPI_MCA_btl_tcp_port_min_v4": "20010",
        "OMPI_MCA_btl_tcp_port_min_v6": "20010",
        "OMPI_MCA_btl_tcp_disable_family": "6",
        "OMPI_MCA_plm_rsh_agent": "/bin/sh",
        "OMPI_MCA_odls_base_sigkill_timeout": "3",
        "OMPI_MCA_btl_vader_backing_directory": "/tmp/x",
        "OMPI_MCA_osc_sm_backing_directory": "/tmp/x",
    }
    on_ipv6 = replace(roster().at(1), address="fd00::1")
    of_ipv6 = mpi.node_variables(on_ipv6, interface="eth1", kill_grace_s=5, shared_files="/tmp/x")
    assert dict(of_ipv6.items() - found.items()) == {
        "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "20010",
        "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "20010-20210",
        "OMPI_MCA_oob_tcp_disable_ipv4_family": "1",
        "OMPI_MCA_btl_tcp_disable_family": "4",
    }
    bare = mpi.node_variables(roster().at(1), interface="", kill_grace_s=0, shared_files=None)
    assert not any("if_include" in name or "backing" in name for name in bare)


@pytest.mark.parametrize("index", [0, 7, 99_999])
def test_the_name_of_a_node_has_its_container(index: int) -> None:
    assert mpi.index_of(mpi.node(index)) == index


@pytest.mark.parametrize(
    "name", ["", "localhost", "dlapp-container-", "dlapp-container-01", "dlapp-container--1", "dlapp-container-1\n"]
)
def test_any_other_name_is_no_container(name: str) -> None:
    assert mpi.index_of(name) is None


def test_only_the_first_container_of_the_first_role_runs_a_program_and_decides() -> None:
    def head(*roles: RoleSpec, framework: Framework = Framework.MPI, success: tuple[str, ...] = ()) -> int | None:
        return AppSpec(
            username="u", appname="a", command=("x",), roles=roles, framework=framework, success=success
        ).head

    assert head(role("worker", 4)) == 0
    assert head(role("board", 2, service=True), role("worker", 4)) == 2
    assert head(role("prepare"), role("worker", 4), success=("worker",)) == 1
    assert head(role("worker", 4), framework=Framework.PYTORCH) is None


def test_a_program_that_never_runs_is_a_problem() -> None:
    assert problems(role("start", command=("mpirun", "x")), role("worker", 4)) == []
    assert problems(role("worker"), role("board", service=True, command=("serve",))) == []
    assert problems(role("start"), role("worker", 4, command=("train",), args=("-v",))) == [
        "role worker.command: is never run: with framework=mpi the program of role start starts all processes; "
        "remove it, or make the role a service",
        "role worker.args: is never run: with framework=mpi the program of role start starts all processes; "
        "remove it, or make the role a service",
    ]
