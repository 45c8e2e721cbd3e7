"""Applications with roles, on every engine: what each role is given, who waits for whom, and what decides the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.applications import Done, launch, run, status, wait_for
from tests.end_to_end.test_applications import END_S, id_of, printed, waited
from tests.engines import Engine, on_yarn_when_full


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
    text += "[resources]\nmemory=64\ngcores=0\n" + more + "".join(f"[role {one}" for one in roles)
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
    assert [(one["role"], one["role_index"], one["index"]) for one in seen["containers"]] == [
        ("trainer", 0, 0),
        ("trainer", 1, 1),
        ("judge", 0, 2),
    ]


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
def test_a_gang_of_roles_starts_together_and_one_that_depends_on_another_later(engine: Engine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.mkdir()
    file = file_of(
        tmp_path,
        f"ps]\nservice=true\ncommand=sh -c 'touch {mark}/ps; exec sleep 600'\n",
        f"worker]\ninstances=2\ndepends_on=ps\ncommand=sh -c 'ls {mark} >{mark}/seen-$DLAPP_ROLE_INDEX; sleep 1'\n",
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
def test_what_a_role_waits_for_is_shown(engine: Engine, tmp_path: Path) -> None:
    file = file_of(tmp_path, "train]\ncommand=sleep 600\n", "eval]\ninstances=2\ndepends_on=train:done\ncommand=true\n")
    application = launch(file)
    wait_for("it runs", lambda: "running 1 of 3" in status(application)["phase"], END_S)
    assert status(application)["phase"] == "running 1 of 3, eval waits for train (done)"
    done: Done = run("dlapp-kill", application)
    assert done.code == 0, done.err
