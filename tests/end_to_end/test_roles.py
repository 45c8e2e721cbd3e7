"""Applications with roles, on every engine: what each role is given, who waits for whom, and what decides the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.applications import Done, launch, processes, run, status, wait_for
from tests.end_to_end.test_applications import END_S, id_of, printed, waited
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import Dockerd
from tests.services.containers.host_images import PYTHON_IMAGE, import_python_image
from tests.tiers import FULL


def file_of(
    place: Path, *roles: str, application: Mapping[str, object] | None = None, more: str = "", **scripts: str
) -> Path:
    """Write a properties file of roles, each the text of its section, and the scripts of its workspace."""
    (place / "w").mkdir(exist_ok=True)
    for name, script in scripts.items():
        (place / f"w/{name}.sh").write_text(f"#!/bin/sh\n{script}\n")
        (place / f"w/{name}.sh").chmod(0o755)
    given = {"appname": "roles", **({"user_dev_workspace_path": "w"} if scripts else {}), **(application or {})}
    text = "[application]\n" + "".join(f"{key}={value}\n" for key, value in given.items())
    text += "[resources]\nmemory=64\ngcores=0\n" + more + "".join(f"[role {role}" for role in roles)
    (place / "roles.properties").write_text(text)
    return place / "roles.properties"


def test_each_role_is_given_its_program_its_place_and_its_variables(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "trainer]\ninstances=2\nscript=train.sh\nargs=a 'b c' {index}\nenv.WHO=trainer\n",
        'judge]\nmemory=96\ncommand=sh -c \'echo "$0 $CONTAINER_INDEX $DLAPP_ROLE $WHO $ALL"\n'
        "    mkdir output; cp train.sh output' {index}\n",
        application={"env.WHO": "anyone", "env.ALL": "all", "user_dev_workspace_path": "w"},
        more=f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/roles\n",
        train='echo "$* $CONTAINER_INDEX/$NUM_CONTAINERS $DLAPP_ROLE $DLAPP_ROLE_INDEX/$DLAPP_ROLE_SIZE $WHO $ALL"\n'
        'mkdir output; echo "$DLAPP_ROLE_INDEX" >output/n',
    )
    done = run("dlapp-launcher", "--wait", "--set", "role.judge.env.ALL=option", file, timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    application = id_of(done)
    assert "DL App Resources = trainer: 2 containers, each with memory 64 MiB" in done.out
    assert sorted(printed("--stdout", application)) == [
        "[judge_0] 2 2 judge anyone option",
        "[trainer_0] a b c 0 0/3 trainer 0/2 trainer all",
        "[trainer_1] a b c 1 1/3 trainer 1/2 trainer all",
    ]
    assert printed("--container", "trainer_1", "--stdout") == ["a b c 1 1/3 trainer 1/2 trainer all"]
    ranks = run("dlapp-logs", "--rank", "0")
    several = f"Error: {application} has no ranks: trainer and judge decide; use --container trainer_0\n"
    assert (ranks.code, ranks.err) == (2, several)
    absent = run("dlapp-logs", "--container", "trainer_2")
    assert (absent.code, absent.err) == (
        3,
        f"Error: {application} has no container trainer_2: the role has 2, from 0\n",
    )
    tree = engine.tree("roles")
    assert {name: text for name, text in tree.items() if name.endswith("/n")} == {
        "trainer_0/n": "0\n",
        "trainer_1/n": "1\n",
    }
    assert "judge_0/train.sh" in tree
    seen = status(application)
    assert [(container["role"], container["role_index"], container["index"]) for container in seen["containers"]] == [
        ("trainer", 0, 0),
        ("trainer", 1, 1),
        ("judge", 0, 2),
    ]


@on_yarn_when_full
def test_commands_run_without_a_workspace_in_an_empty_directory(engine: Engine, tmp_path: Path) -> None:
    done = waited(file_of(tmp_path, "list]\ncommand=ls -A\n", "say]\ncommand=echo '$HOME;' ok\n"))
    assert done.code == 0, done.err + done.out
    assert "user_dev_workspace_path" not in done.out
    assert printed("--stdout", id_of(done)) == ["[say_0] $HOME; ok"]


@on_yarn_when_full
def test_a_command_that_is_not_there_fails_its_role_by_name(engine: Engine, tmp_path: Path) -> None:
    done = waited(file_of(tmp_path, "only]\ncommand=there-is-no-such-program -x\n"))
    assert done.code == 1, done.out
    assert status(id_of(done))["diagnostics"].startswith("container 0 (only 0) failed: exit code 127")


@on_yarn_when_full
def test_a_gang_of_roles_starts_together_and_a_dependent_role_later(engine: Engine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.mkdir()
    file = file_of(
        tmp_path,
        f"ps]\nservice=true\ncommand=sh -c 'touch {mark}/ps; exec sleep 600'\n",
        f"worker]\ninstances=2\ndepends_on=ps\ncommand=sh -c 'until [ -e {mark}/ps ]; do sleep 0.05; done;"
        f" ls {mark} >{mark}/seen-$DLAPP_ROLE_INDEX'\n",
        f"eval]\ndepends_on=worker:done\ncommand=sh -c 'ls {mark}'\n",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    # Its start is reported when its process has begun, which may not have come to its own first step.
    assert sorted(printed("--container", "eval_0", "--stdout", id_of(done))) == ["ps", "seen-0", "seen-1"]
    seen = status(id_of(done))
    worker, evaluation = seen["containers"][1], seen["containers"][3]
    assert evaluation["started_ms"] >= worker["finished_ms"]
    assert seen["containers"][0]["message"] != "", "the service was stopped with the others"


SERVES = """
touch $1/listens
exec python3 -c '
import os, socket, time
import dlapp_context
me = dlapp_context.roster()["members"][int(os.environ["CONTAINER_INDEX"])]
server = socket.create_server((me["address"], me["ports"][0]))
time.sleep(600)'"""


@on_yarn_when_full
def test_a_role_waits_until_others_have_reported_that_they_are_ready_or_accept_connections(
    engine: Engine, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.mkdir()
    file = file_of(
        tmp_path,
        f"ps]\nservice=true\nscript=ps.sh\nargs={mark}\n",
        f"db]\nservice=true\nports=1\nscript=db.sh\nargs={mark}\n",
        f"worker]\ndepends_on=ps:ready, db:ready\ncommand=ls {mark}\n",
        ps="sleep 1; touch $1/reported\n"
        'echo \'{"ready": true, "metrics": {"keys": 3}}\' >>$DLAPP_REPORT; exec sleep 600',
        db=f"sleep 1{SERVES}",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert sorted(printed("--container", "worker_0", "--stdout", id_of(done))) == ["listens", "reported"]
    seen = status(id_of(done))["containers"]
    assert [(item["role"], item["ready"], item["metrics"]) for item in seen] == [
        ("ps", True, {"keys": 3.0}),
        ("db", True, {}),
        ("worker", False, {}),
    ]


HANGS = """
import os, time
import dlapp_context
def waits_for_the_others():
    time.sleep(600)
print("generation", os.environ["DLAPP_GENERATION"])
dlapp_context.progress(0.5)
if os.environ["DLAPP_GENERATION"] == "0":
    waits_for_the_others()
"""


@pytest.mark.slow
@on_yarn_when_full
def test_a_gang_that_hangs_is_restarted_and_its_stacks_are_in_the_log(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "worker]\ninstances=2\nretries=1\nscript=hang.sh\n",
        application={"hang_timeout": "8s"},
        hang=f"exec python3 -c '{HANGS}'",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    seen = status(id_of(done))["containers"]
    assert [(item["generation"], item["exit_code"], item["progress"]) for item in seen] == [(1, 0, None)] * 2
    assert sorted(printed("--stdout", id_of(done))) == ["[0] generation 1", "[1] generation 1"]
    assert sorted(printed("--stdout", "--generation", "1", id_of(done))) == ["[0] generation 1", "[1] generation 1"]
    check_stacks(id_of(done))
    refused = run("dlapp-logs", "--generation", "2", id_of(done))
    assert (refused.code, refused.err) == (3, f"Error: {id_of(done)} has no generation 2: its last one is 1\n")


@pytest.mark.slow
@on_yarn_when_full
def test_a_gang_that_never_reports_and_uses_no_cpu_is_restarted_with_hang_idle(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "worker]\ninstances=2\nretries=1\nscript=hang.sh\n",
        application={"hang_timeout": "8s", "hang_idle": "true"},
        hang=f"exec python3 -c '{HANGS.replace('dlapp_context.progress(0.5)', '')}'",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert sorted(printed("--stdout", id_of(done))) == ["[0] generation 1", "[1] generation 1"]
    check_stacks(id_of(done))


def check_stacks(application: str) -> None:
    """See that the stacks of both ranks are in their logs: those of py-spy, where it may trace, and of faulthandler."""
    for rank in ("0", "1"):
        message = "\n".join(printed("--stderr", "--generation", "0", "--container", rank, application))
        of_py_spy, found, of_python = message.partition("Fatal Python error: Aborted")
        assert found, message
        assert "waits_for_the_others" in of_python, message
        own = printed("--own", "--container", rank, application)
        assert "waits_for_the_others" in of_py_spy or any("no stacks of " in line for line in own), message


@pytest.mark.slow
def test_the_stacks_of_ranks_in_docker_are_in_their_logs(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    import_python_image(dockerd)
    file = file_of(
        tmp_path,
        "worker]\ninstances=2\nretries=1\nscript=hang.sh\n",
        application={"hang_timeout": "8s", "hang_idle": "true", "docker_image": PYTHON_IMAGE, "network": "none"},
        hang=f"exec python3 -c '{HANGS.replace('dlapp_context.progress(0.5)', '')}'",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert sorted(printed("--stdout", id_of(done))) == ["[0] generation 1", "[1] generation 1"]
    check_stacks(id_of(done))


@on_yarn_when_full
def test_success_of_the_roles_that_decide_ends_the_others_with_their_output(engine: Engine, tmp_path: Path) -> None:
    up = tmp_path / "up"
    file = file_of(
        tmp_path,
        "chief]\nscript=chief.sh\n",
        "worker]\ninstances=2\nscript=worker.sh\n",
        application={"success": "chief", "kill_grace": "20s"},
        more=f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/decided\n",
        chief=f"mkdir output; echo best >output/x; until [ -e {up}-0 ] && [ -e {up}-1 ]; do sleep 0.05; done",
        worker=f"mkdir output; trap 'echo saved >output/x; exit 0' TERM; touch {up}-$DLAPP_ROLE_INDEX\n"
        "while :; do sleep 0.05; done",
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert engine.tree("decided") == {"chief_0/x": "best\n", "worker_0/x": "saved\n", "worker_1/x": "saved\n"}
    seen = status(id_of(done))
    assert (seen["final_status"], seen["cause"]) == ("SUCCEEDED", "succeeded")


@on_yarn_when_full
def test_the_condition_of_a_waiting_role_is_shown(engine: Engine, tmp_path: Path) -> None:
    file = file_of(tmp_path, "train]\ncommand=sleep 600\n", "eval]\ninstances=2\ndepends_on=train:done\ncommand=true\n")
    application = launch(file)
    wait_for("it runs", lambda: "running 1 of 3" in status(application)["phase"], END_S)
    assert status(application)["phase"] == "running 1 of 3, eval waits for train (done)"
    done: Done = run("dlapp-kill", application)
    assert done.code == 0, done.err


@on_yarn_when_full
def test_a_service_may_fail_its_application(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "ps]\nservice=true\nretries=3\non_failure=fail\ncommand=sh -c 'exit 4'\n",
        "worker]\ndepends_on=ps\ncommand=sleep 600\n",
    )
    done = waited(file)
    assert done.code == 1, done.out
    seen = status(id_of(done))
    assert (seen["cause"], seen["diagnostics"]) == ("failed", "container 0 (ps 0) failed: exit code 4")


@on_yarn_when_full
def test_each_failure_of_any_instance_is_a_retry_of_its_gang(engine: Engine, tmp_path: Path) -> None:
    once = tmp_path / "once"
    file = file_of(
        tmp_path,
        "worker]\ninstances=2\nretries=1\nscript=work.sh\n",
        # The first to come fails; when it is back, the other one does.
        work=f'mine={once}-$DLAPP_ROLE_INDEX; if mkdir {once} 2>/dev/null; then touch "$mine"; exit 5; fi\n'
        f'if [ -e "$mine" ]; then touch {once}-back; sleep 600; fi\n'
        f"until [ -e {once}-back ]; do sleep 0.05; done; exit 6",
    )
    done = waited(file)
    assert done.code == 1, done.out
    assert status(id_of(done))["diagnostics"].endswith("failed: exit code 6 (role worker failed 2 times in all)")


@on_yarn_when_full
def test_ranks_that_all_exit_at_once_count_one_failure_per_generation(engine: Engine, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    file = file_of(
        tmp_path,
        "worker]\ninstances=4\nretries=1\nscript=work.sh\n",
        # The first one that exits ends the others: none does before all have begun.
        work=f"touch {ran}-$DLAPP_ROLE_INDEX-$DLAPP_GENERATION\n"
        f"until [ $(ls {ran}-*-$DLAPP_GENERATION | wc -l) = 4 ]; do sleep 0.05; done; exit 3",
    )
    done = waited(file)
    assert done.code == 1, done.out
    text = status(id_of(done))["diagnostics"]
    assert "failed 2 times" in text, text
    assert sorted(path.name for path in tmp_path.glob("ran-*-1")) == [f"ran-{n}-1" for n in range(4)]
    assert not list(tmp_path.glob("ran-*-2"))


@pytest.mark.slow
@on_yarn_when_full
def test_a_rank_that_never_becomes_ready_is_named_and_max_runtime_ends_the_wait(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "ps]\nservice=true\ncommand=sleep 600\n",
        f"worker]\ndepends_on=ps:ready\ncommand=touch {tmp_path}/it-ran\n",
        application={"max_runtime": "20s" if engine.name == "local" else "30s"},
    )
    application = launch(file)
    wait_for("the wait", lambda: "worker waits for ps (ready)" in status(application)["phase"], END_S)
    wait_for("the end", lambda: status(application)["state"] == "FINISHED", END_S)
    seen = status(application)
    assert (seen["cause"], seen["containers"][1]["exit_code"]) == ("timed out", None)
    assert seen["diagnosis"]["diagnosis"]["rule"] == "time_limit"
    assert not (tmp_path / "it-ran").exists()


@on_yarn_when_full
def test_after_a_killed_rank_the_gang_restarts_in_the_same_containers(engine: Engine, tmp_path: Path) -> None:
    up = tmp_path / "up"
    file = file_of(
        tmp_path,
        "worker]\ninstances=2\nretries=1\nscript=work.sh\n",
        more=f"[from_hdfs]\nhdfs={engine.put('input/data', 'given')}\ninput_path=in\n",
        work='echo "$DLAPP_GENERATION $(ls) $(cat in/data)"; echo changed >in/data; touch made\n'
        f"touch {up}-$DLAPP_ROLE_INDEX-$DLAPP_GENERATION\n"
        f"until [ -e {up}-0-$DLAPP_GENERATION ] && [ -e {up}-1-$DLAPP_GENERATION ]; do sleep 0.05; done\n"
        f"[ $DLAPP_GENERATION = 1 ] || until [ -e {tmp_path}/seen ]; do sleep 0.05; done\n"
        "[ $DLAPP_GENERATION = 1 ] || [ $DLAPP_ROLE_INDEX = 0 ] || kill -KILL $$\n"
        "[ $DLAPP_GENERATION = 1 ] || sleep 600",
    )
    application = launch(file)
    wait_for("both run", lambda: "running 2 of 2" in status(application)["phase"], END_S)
    before = {container["index"]: container["container_id"] for container in status(application)["containers"]}
    (tmp_path / "seen").touch()
    wait_for("it ends", lambda: status(application)["final_status"] == "SUCCEEDED", END_S)
    after = {container["index"]: container for container in status(application)["containers"]}
    assert [item["generation"] for item in after.values()] == [1, 1]
    assert {index: one["container_id"] for index, one in after.items()} == before
    (line,) = [item for item in run("dlapp-status", application).out.splitlines() if item.startswith("restarted : ")]
    assert line.startswith("restarted : generation 1 at ")
    assert line.endswith(", container 1 (worker 1): killed by signal 9")
    wanted = [f"[{n}] {line}" for n in (0, 1) for line in ("1 in", "work.sh given")]
    assert sorted(printed("--stdout", application)) == wanted


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
@pytest.mark.parametrize("part", range(10 if FULL else 1))
def test_two_gangs_of_four_on_a_cluster_with_room_for_six_always_both_finish(
    engine: Engine, tmp_path: Path, part: int
) -> None:
    del part  # each is two rounds; all 20 take eight minutes
    # Of each node an ApplicationMaster leaves room for three containers of 1 GiB.
    # What the first gang has it keeps until the other one was seen to wait or to give back, at most for a minute.
    seen_one = tmp_path / "seen"
    waits = f"n=0; until [ -e {seen_one} ] || [ $n = 300 ]; do n=$((n + 1)); sleep 0.2; done"
    phases: set[str] = set()

    def is_seen() -> bool:
        return any("released its containers" in phase or "held, waiting for" in phase for phase in phases)

    for number in range(2):
        applications = []
        for name in ("a", "b"):
            (tmp_path / f"{number}{name}").mkdir()
            file = file_of(
                tmp_path / f"{number}{name}",
                f"worker]\ninstances=4\nmemory=1g\ncommand=sh -c '{waits}'\n",
                application={"gang_window": "3s"},
            )
            applications.append(launch(file))

        def both_have_ended(ids: tuple[str, ...] = tuple(applications)) -> bool:
            seen = [status(id_) for id_ in ids]
            phases.update(item["phase"] for item in seen)
            if is_seen():
                seen_one.touch()
            return all(item["final_status"] != "UNDEFINED" for item in seen)

        wait_for(f"the end of both gangs in round {number}", both_have_ended, 300)
        assert [status(application)["final_status"] for application in applications] == ["SUCCEEDED"] * 2
    assert is_seen(), phases


WAITS = "touch @/up-$CONTAINER_INDEX-$DLAPP_GENERATION; until [ -e @/done ]; do sleep 0.02; done"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ["local"], indirect=True)  # its processes are found on one machine
@pytest.mark.parametrize(
    ("phase", "policy", "generation"),
    [("running", "restart_gang", 1), ("running", "restart", 0), ("waiting", "restart_gang", 1)],
)
def test_a_gang_survives_killing_all_processes_of_one_rank(
    engine: Engine, tmp_path: Path, phase: str, policy: str, generation: int
) -> None:
    ready = f"until [ -e {tmp_path}/ready ]; do sleep 0.02; done; echo '{{\"ready\": true}}' >>$DLAPP_REPORT\n"
    file = file_of(
        tmp_path,
        f"first]\nretries=1\nscript=first.sh\non_failure={policy}\n",
        f"second]\nretries=1\nscript=second.sh\non_failure={policy}\ndepends_on=first:ready\n",
        first=(ready + WAITS).replace("@", str(tmp_path)),
        second=WAITS.replace("@", str(tmp_path)),
    )
    if phase == "running":
        (tmp_path / "ready").touch()
    application = launch(file)
    wait_for(
        "its phase",
        lambda: [container["phase"] for container in status(application)["containers"]][1:] == [phase],
        END_S,
    )
    victim = status(application)["containers"][1]["container_id"]
    (directory,) = engine.state_dir.glob(f"*/applications/{application}/containers/{victim}")
    # Its task first: it must not see the end of its payload, which it would start again.
    for process in sorted(processes(directory), key=lambda one: one.role != "task"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    (tmp_path / "ready").touch()
    ranks = [(0, generation), (1, generation)]
    wait_for("both run", lambda: all((tmp_path / f"up-{n}-{of}").exists() for n, of in ranks), END_S)
    wait_for("another container", lambda: status(application)["containers"][1]["container_id"] != victim, END_S)
    (tmp_path / "done").touch()
    wait_for("its end", lambda: status(application)["final_status"] == "SUCCEEDED", END_S)
    seen = status(application)["containers"]
    assert [item["generation"] for item in seen] == [generation] * 2
    assert [len(item["earlier"]) for item in seen] == [0, 1], "the one that lives keeps its container"


@pytest.mark.parametrize("engine", ["local"], indirect=True)
@pytest.mark.parametrize(("more", "code"), [("", 0), ("output_from=all\n", 1)])
def test_with_a_framework_only_the_first_rank_must_create_the_output(
    engine: Engine, tmp_path: Path, more: str, code: int
) -> None:
    file = file_of(
        tmp_path,
        "trainer]\ninstances=3\nscript=train.sh\n",
        application={"framework": "pytorch", "user_dev_workspace_path": "w"},
        more=f"[to_hdfs]\noutput_path=logs/run\nhdfs={engine.root}/ranks\n{more}",
        train='[ "$RANK" != 0 ] || { mkdir -p logs/run; echo done >logs/run/metrics; }',
    )
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
    assert done.code == code, done.out + done.err
    if code:
        assert re.search(r"container [12] \(trainer [12]\) failed: the script made no 'logs/run'", done.out)
    else:
        assert sorted(os.listdir(f"{engine.root}/ranks")) == ["0", "1", "2"]
        assert engine.tree("ranks") == {"0/metrics": "done\n"}


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_first_rank_that_creates_no_output_fails_also_with_a_framework(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "trainer]\ninstances=2\nscript=train.sh\n",
        application={"framework": "pytorch", "user_dev_workspace_path": "w"},
        more=f"[to_hdfs]\noutput_path=logs\nhdfs={engine.root}/ranks\n",
        train='[ "$RANK" = 0 ] || mkdir logs',
    )
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
    assert done.code == 1, done.out + done.err
    assert "container 0 (trainer 0) failed: the script made no 'logs'" in done.out
