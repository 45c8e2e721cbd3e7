"""The variables that frameworks get, and the rules for their roles."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from dlapp import frameworks
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import (
    AppSpec,
    Dependency,
    Framework,
    Gang,
    PayloadProgram,
    Resources,
    RoleFailure,
    RoleSpec,
    Until,
)

CPU = Resources(vcores=8)


def roster(**instances: int) -> Roster:
    """Return a roster with so many members of each role, two on each host."""
    members: list[Member] = []
    for role, count in instances.items():
        for n in range(count):
            index = len(members)
            where = index // 2
            ports = (20_000 + index,)
            members.append(
                Member(role=role, role_index=n, index=index, host=f"n{where}", address=f"10.0.0.{where}", ports=ports)
            )
    return Roster(generation=0, version=0, members=tuple(members))


def variables(
    framework: Framework,
    of: Roster,
    index: int,
    *,
    resources: Resources = CPU,
    interface: str = "",
    user: Mapping[str, str] | None = None,
) -> dict[str, str]:
    return frameworks.environment(
        framework, of, of.at(index), resources=resources, interface=interface, user=user or {}
    )


def on_ipv6(of: Roster) -> Roster:
    members = tuple(
        Member(role=m.role, role_index=m.role_index, index=m.index, host=m.host, address="fd00::1", ports=m.ports)
        for m in of.members
    )
    return Roster(generation=0, version=0, members=members)


# ---- variables ----


def test_tensorflow_gets_the_cluster_by_task_type_and_its_own_task() -> None:
    of = roster(chief=1, worker=2, ps=1)
    assert json.loads(variables(Framework.TENSORFLOW, of, 2)["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["10.0.0.0:20000"],
            "worker": ["10.0.0.0:20001", "10.0.0.1:20002"],
            "ps": ["10.0.0.1:20003"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_tensorflows_evaluator_gets_the_cluster_without_itself() -> None:
    config = json.loads(variables(Framework.TENSORFLOW, roster(worker=2, evaluator=1), 2)["TF_CONFIG"])
    assert config["cluster"].keys() == {"worker"}
    assert config["task"] == {"type": "evaluator", "index": 0}


def test_services_that_are_no_task_type_are_not_in_tf_config() -> None:
    config = json.loads(variables(Framework.TENSORFLOW, roster(worker=2, board=1), 0)["TF_CONFIG"])
    assert config["cluster"].keys() == {"worker"}


def test_an_ipv6_address_is_in_brackets_before_a_port_and_nowhere_else() -> None:
    config = json.loads(variables(Framework.TENSORFLOW, on_ipv6(roster(worker=1)), 0)["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["[fd00::1]:20000"]
    assert variables(Framework.PYTORCH, on_ipv6(roster(worker=1)), 0)["MASTER_ADDR"] == "fd00::1"
    assert variables(Framework.TORCHRUN, on_ipv6(roster(worker=1)), 0)["PET_MASTER_ADDR"] == "[fd00::1]"


def test_a_rank_of_pytorch_is_alone_in_its_container_also_where_two_share_a_host() -> None:
    assert variables(Framework.PYTORCH, roster(board=1, worker=3), 2) == {
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "20001",
        "RANK": "1",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.0:20001",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
    }


@pytest.mark.parametrize("framework", [Framework.PYTORCH, Framework.TORCHRUN])
def test_pytorch_lightning_uses_the_containers_as_nodes(framework: Framework) -> None:
    def ranks(index: int, devices: int) -> tuple[list[int], str, str]:
        # LightningEnvironment: the rank of a process is node_rank() * devices + local rank.
        found = variables(framework, roster(worker=3), index)
        node = int(found.get("NODE_RANK", found.get("GROUP_RANK", "0")))
        return [node * devices + local for local in range(devices)], found["MASTER_ADDR"], found["MASTER_PORT"]

    seen = [ranks(index, 2) for index in range(3)]
    assert [item[0] for item in seen] == [[0, 1], [2, 3], [4, 5]]
    assert {item[1:] for item in seen} == {("10.0.0.0", "20000")}


def test_torchrun_starts_a_process_for_each_gpu_and_restarts_none() -> None:
    assert variables(Framework.TORCHRUN, roster(worker=2), 1, resources=Resources(vcores=8, gcores=2)) == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.0",
        "PET_MASTER_PORT": "20000",
        "PET_RDZV_BACKEND": "static",
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_CONF": "is_host=0",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "20000",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.0:20000",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }


def test_a_container_of_torchrun_is_a_rank_if_it_has_one_process_only() -> None:
    as_rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    of = roster(worker=2)
    assert variables(Framework.TORCHRUN, of, 1).items() >= as_rank.items()
    for processes in ("2", "auto", "gpu"):
        found = variables(Framework.TORCHRUN, of, 1, user={"PET_NPROC_PER_NODE": processes})
        assert found.keys().isdisjoint(as_rank)


def test_jax_finds_its_coordinator_in_a_variable_with_an_address_that_may_have_brackets() -> None:
    assert variables(Framework.JAX, roster(worker=2), 1) == variables(Framework.PYTORCH, roster(worker=2), 1)
    found = variables(Framework.JAX, on_ipv6(roster(worker=2)), 1)
    assert found["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:20000"


def deepspeed(environ: Mapping[str, str]) -> tuple[str, int, int, int]:
    """Return what ``deepspeed.init_distributed`` takes from its environment; it turns to MPI if one is missing.

    Source: deepspeed/comm/comm.py (0.16), init_distributed.
    """
    missing = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"} - environ.keys()
    assert not missing
    address = f"tcp://{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    return address, int(environ["RANK"]), int(environ["WORLD_SIZE"]), int(environ["LOCAL_RANK"])


@pytest.mark.parametrize("framework", [Framework.PYTORCH, Framework.TORCHRUN, Framework.JAX])
def test_deepspeed_finds_its_ranks(framework: Framework) -> None:
    found = [deepspeed(variables(framework, roster(worker=3), index)) for index in range(3)]
    assert found == [("tcp://10.0.0.0:20000", rank, 3, 0) for rank in range(3)]


def test_torchruns_options_are_torchruns_alone() -> None:
    for framework in (Framework.PYTORCH, Framework.JAX):
        # They would make `torchrun --standalone` wait for other containers.
        assert not any(name.startswith("PET_") for name in variables(framework, roster(worker=2), 0))


@pytest.mark.parametrize(("asked", "processes"), [("4", 4), ("16", 16), ("auto", 0), ("gpu", 0), ("0", 0)])
def test_the_users_number_of_processes_counts_for_torchrun(asked: str, processes: int) -> None:
    user = {"PET_NPROC_PER_NODE": asked}
    assert "PET_NPROC_PER_NODE" not in variables(Framework.TORCHRUN, roster(worker=1), 0, user=user)
    assert frameworks.processes(Framework.TORCHRUN, Resources(vcores=8, gcores=2), user) == processes


def test_torchrun_runs_only_a_python_script() -> None:
    python = PayloadProgram("code/train.py", (), ("--fast",))
    wrapped = PayloadProgram("", ("python3", "-m", "torch.distributed.run", "code/train.py"), ("--fast",))
    assert frameworks.command_of(Framework.TORCHRUN, python) == wrapped
    assert frameworks.command_of(Framework.PYTORCH, python) == python
    for other in (PayloadProgram("train.sh", (), ()), PayloadProgram("", ("torchrun", "train.py"), ())):
        assert frameworks.command_of(Framework.TORCHRUN, other) == other


def test_a_worker_of_dmlc_gets_the_scheduler_the_counts_and_its_own_address() -> None:
    of = roster(scheduler=1, server=1, worker=2)
    assert variables(Framework.DMLC, of, 3) == {
        "DMLC_ROLE": "worker",
        "DMLC_PS_ROOT_URI": "10.0.0.0",
        "DMLC_PS_ROOT_PORT": "20000",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NODE_HOST": "10.0.0.1",
        "DMLC_WORKER_ID": "1",
        "PORT": "20003",
    }
    assert variables(Framework.DMLC, of, 0).keys().isdisjoint({"DMLC_WORKER_ID", "PORT"})


def test_nccl_and_gloo_get_the_interface_where_it_is_known() -> None:
    found = variables(Framework.PYTORCH, roster(worker=1), 0, interface="eth0")
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert "NCCL_SOCKET_IFNAME" not in variables(Framework.PYTORCH, roster(worker=1), 0)


@pytest.mark.parametrize("framework", [item for item in Framework if item is not Framework.NONE])
def test_variables_set_by_the_user_are_kept(framework: Framework) -> None:
    of = roster(scheduler=1, server=1, worker=1)
    every = variables(framework, of, 2, interface="eth0")
    assert variables(framework, of, 2, interface="eth0", user=dict.fromkeys(every, "mine")) == {}


# ---- rules ----


def problems(framework: Framework, *roles: RoleSpec, gang: Gang = Gang.ALL, success: tuple[str, ...] = ()) -> list[str]:
    found = frameworks.problems(framework, roles, gang=gang, success=success)
    return [f"{key}: {problem}" for key, problem in found]


def role(name: str, instances: int = 1, **more: object) -> RoleSpec:
    return RoleSpec(name=name, instances=instances, **{"ports": 1, **more})  # type: ignore[arg-type]


TENSORFLOW_TYPES = "is no task type of TensorFlow (chief, worker, ps, evaluator); another role needs service=true"


@pytest.mark.parametrize(
    ("framework", "roles", "expected"),
    [
        (Framework.TENSORFLOW, [role("chief"), role("worker", 2), role("ps", service=True)], []),
        (Framework.TENSORFLOW, [role("worker", 4), role("board", service=True)], []),
        (
            Framework.TENSORFLOW,
            [role("chief", 2), role("evaluator", 3, service=True)],
            [
                "role chief.instances: is 2, TensorFlow has one chief at most",
                "role evaluator.instances: is 3, TensorFlow has one evaluator at most",
            ],
        ),
        (
            Framework.TENSORFLOW,
            [role("ps", service=True), role("trainer")],
            [
                "role ps: serves workers, and there is no role worker",
                "application.framework: is tensorflow, and there is neither a role chief nor a role worker",
                f"role trainer: {TENSORFLOW_TYPES}",
            ],
        ),
        (Framework.PYTORCH, [role("worker", 4), role("board", service=True)], []),
        (
            Framework.TORCHRUN,
            [role("master"), role("worker", 4)],
            [
                "application.success: the processes of one role are its ranks, and master and worker decide; name the "
                "one that trains (success=ROLE), or make the others services"
            ],
        ),
        (Framework.DMLC, [role("scheduler"), role("server"), role("worker", 2)], []),
        (
            Framework.DMLC,
            [role("scheduler", 2), role("worker", 2), role("board")],
            [
                "application.framework: is dmlc, and there is no role server: add [role server]",
                "role scheduler.instances: is 2, ps-lite has one scheduler",
                "role board: is no role of ps-lite (scheduler, server, worker); another role needs service=true",
            ],
        ),
        (Framework.NONE, [role("ps"), role("any", on_failure=RoleFailure.RESTART)], []),
    ],
)
def test_roles_that_a_framework_refuses_are_found_before_submission(
    framework: Framework, roles: list[RoleSpec], expected: list[str]
) -> None:
    assert problems(framework, *roles) == expected


def test_a_role_that_prepares_is_no_rank_if_another_one_decides() -> None:
    train = role("train", 2, depends_on=(Dependency("prepare", Until.DONE),))
    assert problems(Framework.PYTORCH, role("prepare"), train, success=("train",)) == []


@pytest.mark.parametrize("gang", [Gang.NONE, Gang.ROLE])
def test_members_of_a_framework_start_together(gang: Gang) -> None:
    assert problems(Framework.TENSORFLOW, role("chief"), role("worker"), gang=gang) == [
        f"application.gang: is {gang.value}, but with framework=tensorflow chief and worker start together"
    ]


def test_a_member_that_waits_for_the_end_of_another_cannot_work_with_it() -> None:
    late = role("worker", depends_on=(Dependency("chief", Until.DONE),))
    assert problems(Framework.TENSORFLOW, role("chief"), late) == [
        "application.framework: is tensorflow, but chief and worker do not start together: one waits (:done)"
    ]


def test_a_member_of_a_framework_needs_a_port() -> None:
    assert problems(Framework.PYTORCH, role("worker", ports=0), role("board", service=True, ports=0)) == [
        "role worker.ports: is 0, but with framework=pytorch each container needs one"
    ]


def test_only_dmlc_allows_one_process_to_return() -> None:
    alone = role("worker", 2, on_failure=RoleFailure.RESTART)
    assert problems(Framework.PYTORCH, alone) == [
        "role worker.on_failure: is restart, but in pytorch one process cannot join the others later; use restart_gang"
    ]
    assert problems(Framework.DMLC, role("scheduler"), role("server"), alone) == []


def test_only_the_roles_that_a_framework_knows_get_its_variables() -> None:
    def environments(framework: Framework, *roles: RoleSpec, success: tuple[str, ...] = ()) -> list[Framework]:
        spec = AppSpec(username="u", appname="a", command=("x",), roles=roles, framework=framework, success=success)
        return [frameworks.framework_of(spec, item) for item in roles]

    none, pytorch, tensorflow = Framework.NONE, Framework.PYTORCH, Framework.TENSORFLOW
    board = role("board", service=True)
    assert environments(none, role("worker"), board) == [none, none]
    assert environments(pytorch, role("prepare"), role("train"), board, success=("train",)) == [none, pytorch, none]
    assert environments(tensorflow, role("chief"), role("ps", service=True), board) == [tensorflow, tensorflow, none]


def test_the_chief_decides_and_else_the_workers() -> None:
    chief, worker, board = role("chief"), role("worker"), role("board", service=True)
    assert frameworks.success(Framework.TENSORFLOW, [board, worker, chief]) == ("chief",)
    assert frameworks.success(Framework.TENSORFLOW, [board, worker]) == ("worker",)
    assert frameworks.success(Framework.PYTORCH, [board, worker]) == ()
    assert frameworks.services(Framework.TENSORFLOW) == ("ps", "evaluator")
