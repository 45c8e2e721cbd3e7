"""Whole applications, on every engine that there is: what a user's program is given, and how its end is reported.

The tests are the same for all engines; what differs between them is in `tests.engines`. Hadoop's own example, the
distributed shell, has tests for what a user may expect of YARN. Each behaviour that they check, and where it is checked
here; files are those of cluster_yarn where no other directory is named.

| distributed shell                          | here |
|--------------------------------------------|------|
| container_max_retries                      | a_failed_program_is_retried_as_often_as_its_role_allows |
| a failed command fails the application     | the_exit_code_of_a_program_decides |
| timeout                                    | an_application_over_max_runtime_is_stopped_and_its_output_kept |
| num_containers, shell_args, _env, _script  | every_container_is_given_its_place_its_arguments_and_environment |
| localize_files                             | every_container_... (input); launcher/test_submit.py (not there) |
| the same file again                        | client/test_engine.py, ..._is_sent_once, ..._reuses_dlapp_... |
| memory, resources above the maximum        | test_refusals.py, an_ask_above_a_maximum_names_its_setting |
| keep_containers, attempts                  | test_killed_masters.py; client/test_engine.py |
| a master that exits early                  | test_pythons.py, a_python_that_is_too_old_... |
| application_tags, priority, appname, queue | yarn_shows_tags_priority_queue_project_and_name |
| wrong, missing or unknown options          | launcher/test_properties.py, tools/test_common.py |
| kill, and its final state                  | a_kill_keeps_no_output_and_waiting_commands_report_it |
| the staging directory goes at the end      | client/test_engine.py, after_the_end_the_staging_... |
| timeline data of the application           | test_refusals.py, the_timeline_server_knows_... |
| node_label_expression                      | test_asks.py: what is asked; no cluster with labels is here |

What is not here, and why:

- container_error_codes, a retry policy by exit code: whose fault an end was decides (am/test_verdict.py), because
  programs do not agree on what their numbers mean. container_retry_interval: a retry waits for a container anyway.
- debug, log_properties, the level of the log: dlapp.log has all levels, because it is a line for each step and no more.
  That it is there, apart from what the program prints, every_container_... looks at.
- container_type, enforce_execution_type: every container is of YARN's default type, GUARANTEED, because another may be
  ended at any moment, and training with it.
- attempt_failures_validity_interval: yarn.am_attempts counts over the whole run, because masters that die again and
  again are to have an end.
- placement_spec, node attributes: users name nodes or exclude them, because they know them by name (test_am_engine.py,
  only_named_nodes_are_used).
- timeline entities that the master publishes: its view and its history on HDFS say the same, because a cluster need not
  have a timeline server.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from tests.applications import BIN, Done, ended, launch, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full

END_S = 120.0


def waited(file: Path) -> Done:
    return run("dlapp-launcher", "--wait", file, timeout_s=END_S)


def id_of(done: Done) -> str:
    return next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))


def printed(*options: str) -> list[str]:
    """Return what the application's containers printed, once all of it has arrived: YARN collects it after the end."""
    done = run("dlapp-logs", *options, timeout_s=END_S)
    assert done.code == 0, done.err
    return done.out.splitlines()


def is_running(application: str, containers: int = 1) -> bool:
    phases = [container["phase"] for container in status(application)["containers"]]
    return phases == ["running"] * containers


def test_every_container_is_given_its_place_its_arguments_and_environment(engine: Engine, tmp_path: Path) -> None:
    data = engine.put("data/words", "of input\n")
    script = (
        'echo "$CONTAINER_INDEX of $NUM_CONTAINERS, $DLAPP_ROLE $DLAPP_ROLE_INDEX of $DLAPP_ROLE_SIZE: $COLOUR"\n'
        'printf "<%s>" "$@"; echo; cat; cat input/words; test "$PWD" = "$DLAPP_WORKSPACE"; echo "here: $?"\n'
        'test -w "$HOME" && test -w "$TMPDIR" && test -w "$DLAPP_CACHE_MODELS"; echo "writable: $?"; echo trouble >&2\n'
        'test ${#TMPDIR} -lt 40 || echo "$TMPDIR has no room for Unix sockets"'
    )
    file = properties(
        tmp_path,
        script,
        application={
            "user_shell_args": "'a b' $HOME \"c\"",
            "env.COLOUR": 'red "and" $blue',
            "cache.models": "/models",
        },
        resources={"containers": 2},
        from_hdfs={"hdfs": data, "input_path": "input"},
    )
    done = waited(file)
    assert done.code == 0, done.err + done.out
    application = id_of(done)
    for index in range(2):
        assert printed("--container", str(index), "--stdout", application) == [
            f'{index} of 2, worker {index} of 2: red "and" $blue',
            "<a b><$HOME><c>",
            *("of input", "here: 0", "writable: 0"),
        ]
    assert "note: cache.models: without docker_image nothing is mounted at /models; DLAPP_CACHE_MODELS has" in done.err
    assert sorted(printed("--stderr", application)) == ["[0 err] trouble", "[1 err] trouble"]
    last = printed("--rank", "1", "--stdout", "--tail", "2", application)
    assert last == ["here: 0", "writable: 0"]
    own = printed("--own", "--container", "1", application)
    assert any(line.endswith(" running") for line in own)
    assert any("ended: " in line for line in own)
    shown = run("dlapp-status", application)
    assert shown.out.splitlines()[0] == f"DL App {application} is FINISHED"
    assert "$blue" not in json.dumps(status(application))


def test_output_of_all_containers_replaces_the_old_at_once(engine: Engine, tmp_path: Path) -> None:
    engine.put("result/0/old", "mine\n")
    script = 'mkdir -p output/deep; echo "$WORD $CONTAINER_INDEX" >output/deep/x'
    output = {"output_path": "output", "hdfs": f"{engine.root}/result"}
    refused = run("dlapp-launcher", properties(tmp_path, script, to_hdfs=output))
    assert refused.code == 2, refused.out
    assert "overwrite" in refused.err
    kept: list[str] = []
    for word, previous in (("new", 0), ("newer", 1)):
        file = properties(
            tmp_path,
            script,
            application={"env.WORD": word},
            resources={"containers": 2},
            to_hdfs={**output, "overwrite": "true", "keep_previous": previous},
        )
        done = waited(file)
        assert done.code == 0, done.err
        assert engine.tree("result") == {"0/deep/x": f"{word} 0\n", "1/deep/x": f"{word} 1\n"}
        # What dlapp did not write is kept, and its own output on request.
        what = "previous" if previous else "replaced"
        kept.append(f"result.{what}.{id_of(done)}")
        wait_for("nothing else beside it", lambda: set(engine.beside("result")) <= set(kept))
        assert sorted(engine.beside("result")) == sorted(kept)
        seen = status(id_of(done))["outputs"][0]
        assert [name for name in ("replaced", "previous") if seen[name]] == [what]
        assert seen[what].rpartition("/")[2] == kept[-1]
        assert f"{what} : " in done.out
    assert engine.tree(kept[0]) == {"0/old": "mine\n"}
    assert engine.tree(kept[1]) == {"0/deep/x": "new 0\n", "1/deep/x": "new 1\n"}


@on_yarn_when_full
def test_a_run_may_begin_with_the_output_of_the_one_before(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        'ls -A "$DLAPP_INPUT"; mkdir output; cat before/count >output/count 2>&1 || echo none >output/count\n'
        "echo more >>output/count",
        from_hdfs={"hdfs": f"{engine.root}/result/*", "input_path": "before", "optional": "true"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result", "overwrite": "true"},
    )
    first = waited(file)
    assert first.code == 0, first.err
    assert "matches nothing now; it is optional" in first.err
    assert first.err.startswith("note: ")
    assert printed("--container", "0", "--stdout", id_of(first)) == []
    assert engine.tree("result") == {"count": "none\nmore\n"}
    second = waited(file)
    assert second.code == 0, second.err
    assert printed("--container", "0", "--stdout", id_of(second)) == ["count"]
    assert engine.tree("result") == {"count": "none\nmore\nmore\n"}


@on_yarn_when_full
def test_the_exit_code_of_a_program_decides(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    wrote = tmp_path / "wrote"
    script = (
        "mkdir output; echo half >output/x; echo $CONTAINER_INDEX\n"
        f"[ $CONTAINER_INDEX = 1 ] || {{ touch {wrote}; exec sleep 600; }}\n"
        f"until [ -e {wrote} ]; do sleep 0.05; done; exit 7"
    )
    done = waited(
        properties(
            tmp_path,
            script,
            resources={"containers": 2},
            to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        )
    )
    assert done.code == 1, done.out
    seen = status(id_of(done))
    assert (seen["final_status"], seen["cause"]) == ("FAILED", "failed")
    assert seen["diagnostics"].startswith("container 1 (worker 1) failed: exit code 7")
    assert seen["containers"][1]["exit_code"] == 7
    partial = seen["outputs"][0]["partial"].rpartition("/")[2]
    assert engine.tree(f"kept/{partial}") == {"0/x": "half\n", "1/x": "half\n"}
    assert engine.tree("kept/result") == {}


@on_yarn_when_full
def test_a_failed_program_is_retried_as_often_as_its_role_allows(engine: Engine, tmp_path: Path) -> None:
    witness = tmp_path / "starts"
    script = f'echo start >>{witness}; echo "try $(wc -l <{witness})"; [ $(wc -l <{witness}) -ge 3 ] || exit 9'
    file = properties(tmp_path, script, resources={"retries": 2})
    done = waited(file)
    assert done.code == 0, done.err
    end = status(id_of(done))
    assert (end["cause"], end["containers"][0]["attempt"]) == ("succeeded", 3), end["diagnostics"]
    assert witness.read_text() == "start\n" * 3
    assert printed("--stdout", end["application_id"]) == ["[0] try 3"]
    for number in (1, 2, 3):
        assert printed("--try", str(number)) == [f"[0] try {number}"]
    earlier = end["containers"][0]["earlier"]
    assert [(item["attempt"], item["exit_code"]) for item in earlier] == [(1, 9), (2, 9)]
    assert printed("--container", earlier[1]["container_id"]) == ["try 2"]
    absent = run("dlapp-logs", "--try", "4")
    assert (absent.code, "each container was started 3 times at the most" in absent.err) == (3, True)


@on_yarn_when_full
def test_lines_of_both_streams_are_shown_in_the_order_in_which_they_were_printed(
    engine: Engine, tmp_path: Path
) -> None:
    # Its task notes the sizes of both files ten times a second, one line each: that orders them.
    noted = (
        "noted() { until [ $(wc -l <$(dirname $(readlink /proc/$$/fd/1))/dlapp.times) -ge $1 ]; do sleep 0.05; done; }"
    )
    script = f"{noted}\necho one >&2; noted 1; echo two; noted 2; echo three >&2; noted 3; printf four"
    application = launch(properties(tmp_path, script))
    in_order = ["[0 err] one", "[0] two", "[0 err] three", "[0] four"]
    followed = run("dlapp-logs", "-f", application, timeout_s=END_S)
    assert (followed.code, followed.out.splitlines()) == (0, in_order)
    lines = printed("--timestamps", application)
    assert [re.sub(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d ", " ", line) for line in lines] == in_order
    entries = [json.loads(line) for line in printed("--json", application)]
    times = [entry["time_ms"] for entry in entries]
    seen = status(application)
    assert seen["started_ms"] <= times[0] < times[1] < times[2] < times[3] <= seen["finished_ms"]
    third = datetime.fromtimestamp(times[2] / 1000).isoformat(timespec="milliseconds")
    assert printed("--since", third, application) == in_order[2:]
    alone = run("dlapp-logs", "--timestamps", "--container", "0", application)
    assert re.fullmatch(r"(\S+ \S+ (two|four)\n){2}", alone.out)
    assert re.fullmatch(r"(\S+ \S+ (one|three)\n){2}", alone.err)


@on_yarn_when_full
def test_an_application_over_max_runtime_is_stopped_and_its_output_kept(engine: Engine, tmp_path: Path) -> None:
    limit_s = 15 if engine.name == "local" else 25  # from the start of its ApplicationMaster
    script = "mkdir output; echo half >output/x; exec sleep 600"
    file = properties(
        tmp_path,
        script,
        application={"max_runtime": f"{limit_s}s", "kill_grace": "1s"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/late"},
    )
    done = waited(file)
    assert done.code == 6, done.out + done.err
    seen = status(id_of(done))
    assert (seen["final_status"], seen["cause"]) == ("KILLED", "timed out")
    assert seen["diagnostics"].startswith(f"timed out after {limit_s} s, output kept as partial")
    listed = json.loads(run("dlapp-list", "--json").out)["applications"][-1]
    assert [listed[key] for key in ("state", "final_status", "cause", "exit_code")] == [
        "FINISHED",
        "KILLED",
        "timed out",
        6,
    ]
    assert engine.tree(seen["outputs"][0]["partial"].rpartition("/")[2]) == {"x": "half\n"}


@on_yarn_when_full
def test_output_saved_at_max_runtime_below_a_shell_is_committed(engine: Engine, tmp_path: Path) -> None:
    limit_s = 15 if engine.name == "local" else 25  # from the start of its ApplicationMaster
    program = "sh -c 'trap \"sleep 0.2; echo saved >output/x; exit 0\" TERM; while :; do sleep 0.02; done'"
    file = properties(
        tmp_path,
        f"mkdir output; {program}; echo ended with $?",
        application={"max_runtime": f"{limit_s}s"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/saved"},
    )
    done = waited(file)
    assert done.code == 6, done.out + done.err
    assert status(id_of(done))["diagnostics"] == f"timed out after {limit_s} s, output committed"
    assert engine.tree("saved") == {"x": "saved\n"}
    assert printed("--stdout", id_of(done)) == ["[0] ended with 0"]


@on_yarn_when_full
def test_a_training_that_was_killed_with_its_script_does_not_replace_the_output_of_another(
    engine: Engine, tmp_path: Path
) -> None:
    engine.put("model/weights", "trained\n")
    file = properties(
        tmp_path,
        "mkdir output; nohup sleep 600 </dev/null >output/train.log 2>&1 &\n"
        "until grep -q sleep /proc/$!/comm; do sleep 0.02; done",
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/model", "overwrite": "true"},
    )
    done = waited(file)
    assert done.code == 1, done.out + done.err
    seen = status(id_of(done))
    assert seen["diagnostics"].startswith("the output has no data, and the script of container 0 (worker 0) ended")
    assert [container["message"] for container in seen["containers"]] == ["ended with the script: 1 process, sleep"]
    assert engine.tree("model") == {"weights": "trained\n"}


@on_yarn_when_full
def test_a_list_shows_progress_and_the_kill(engine: Engine, tmp_path: Path) -> None:
    application = launch(properties(tmp_path, "sleep 600"))
    wait_for("the list says that it runs", lambda: "running 1 of 1" in run("dlapp-list").out, END_S)
    assert run("dlapp-kill", application).code == 0
    listed = json.loads(run("dlapp-list", "--json").out)["applications"][-1]
    assert [listed[key] for key in ("state", "cause", "exit_code")] == ["KILLED", "killed", 7]
    assert (status(application)["state"], status(application)["cause"]) == ("KILLED", "killed")


@on_yarn_when_full
def test_a_soft_kill_lets_every_container_end_and_commits_their_output(engine: Engine, tmp_path: Path) -> None:
    script = (
        'mkdir output; trap "echo saved >output/$CONTAINER_INDEX; exit 0" TERM; echo up; while :; do sleep 0.05; done'
    )
    file = properties(
        tmp_path, script, resources={"containers": 2}, to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/soft"}
    )
    application = launch(file)
    wait_for("both are up", lambda: sorted(printed("--stdout", application)) == ["[0] up", "[1] up"], END_S)
    # What its ApplicationMaster does not know to run yet has nothing to save.
    wait_for("both run", lambda: is_running(application, 2), END_S)
    assert run("dlapp-softkill", application).code == 0
    seen = ended(application, END_S)
    assert (seen["state"], seen["final_status"], seen["cause"]) == ("FINISHED", "KILLED", "soft-killed")
    assert {container["message"] for container in seen["containers"]} == {f"soft-killed by {getpass.getuser()}"}
    assert engine.tree("soft") == {"0/0": "saved\n", "1/1": "saved\n"}
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 7


@on_yarn_when_full
def test_a_kill_keeps_no_output_and_waiting_commands_report_it(engine: Engine, tmp_path: Path) -> None:
    mark = f"sleep 6543{os.getpid()}"
    engine.put("killed/somewhere/else", "")
    file = properties(
        tmp_path,
        f"mkdir output; echo half >output/x; exec {mark}",
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/killed/result"},
    )
    with subprocess.Popen(
        [BIN / "dlapp-launcher", "--wait", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stdout is not None
        application = next(line for line in launcher.stdout if line.startswith("DL App ID")).split()[-1]
        wait_for("it runs", lambda: is_running(application), END_S)
        killed = run("dlapp-kill", application, timeout_s=END_S)
        assert (killed.code, killed.out) == (0, f"{application} was killed, no output kept\n")
        launcher.stdout.read()
    assert launcher.returncode == 7
    assert status(application)["state"] == "KILLED"
    wait_for("its end", lambda: subprocess.run(["pgrep", "-fx", mark], capture_output=True).returncode == 1)
    wait_for("no output of it", lambda: not engine.beside("killed/result") and not engine.tree("killed/result"))


def test_a_program_over_its_memory_limit_is_ended_with_the_numbers(engine: Engine, tmp_path: Path) -> None:
    if engine.name == "local":
        return  # there nothing watches it
    script = f"exec {sys.executable} -c \"import time; held = b'x' * (400 << 20); time.sleep(60)\""
    done = waited(properties(tmp_path, script, resources={"memory": 256}))
    assert done.code == 1, done.out + done.err
    assert re.fullmatch(
        r"container 0 \(worker 0\) failed: the container was ended for using too much memory: \d\S* MB of 256 MB; "
        "raise memory of its role",
        status(id_of(done))["diagnostics"],
    )
    assert status(id_of(done))["diagnosis"]["diagnosis"]["rule"] == "memory_limit"


def test_yarn_shows_tags_priority_queue_project_and_name(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        "true",
        application={"tags": "One, two", "priority": "3", "queue": "research", "project": "cats", "appname": "named"},
    )
    done = waited(file)
    assert done.code == 0, done.err
    (listed,) = json.loads(run("dlapp-list", "--json").out)["applications"][-1:]
    # YARN makes tags lower case.
    tags = ["One", "two"] if engine.name == "local" else ["one", "two"]
    for seen in (status(id_of(done)), listed):
        assert (seen["application_id"], seen["appname"]) == (id_of(done), "named")
        assert (seen["queue"], seen["priority"], seen["project"], seen["tags"]) == ("research", 3, "cats", tags)
    words = run("dlapp-list").out.splitlines()[-1].split()
    assert words[words.index("research") :][:4] == ["research", "3", "cats", f"{tags[0]},"]
    assert "tags : " + ", ".join(tags) in run("dlapp-status").out.splitlines()
    if engine.name == "yarn":
        from dlapp.cluster.yarn.client.rest import YarnRest
        from dlapp.hadoop.configuration import read_configuration

        site = read_configuration(os.environ["DLAPP_YARN_CONF_DIR"])
        with YarnRest(site.web_urls(), Login(getpass.getuser())) as rest:
            report = rest.report(ApplicationId.from_text(id_of(done)))
        # Before Hadoop 3.4 without the queues above it.
        assert (report.name, report.queue.removeprefix("root.")) == ("named", "research")
        assert set(report.tags) == {"one", "two", "project:cats"}
        assert report.raw["priority"] == 3


def test_changed_priority_and_memory_are_shown_at_once_and_in_the_status(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"priority": 99}, resources={"memory": 200})
    done = waited(file)
    assert done.code == 0, done.err
    seen = status(id_of(done))
    if engine.name == "local":
        assert (seen["changes"], seen["priority"]) == ([], 99)
        return
    assert "memory 200 MiB of each container is raised to 256 MiB (yarn.scheduler.minimum-allocation-mb)" in done.err
    assert "priority 99 is lowered to 10 (yarn.cluster.max-application-priority)" in done.err
    assert seen["priority"] == 10
    assert seen["changes"] == [
        "each worker container: memory raised from 200 to 256 MiB",
        "priority 99 was asked for, YARN has made it 10 (yarn.cluster.max-application-priority)",
    ]
    assert f"changed : {seen['changes'][0]}" in run("dlapp-status").out.splitlines()
