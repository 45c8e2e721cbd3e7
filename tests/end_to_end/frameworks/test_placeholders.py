"""Applications with placeholders in arguments, variables and targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.applications import run, status
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine, on_yarn_when_full

DOCUMENTATION = Path(__file__).parents[3] / "docs/distributed.md"
BENCHMARKS = '''\
"""Stand-in for tf_cnn_benchmarks: it reads the same arguments, and its workers connect to all servers."""

import argparse
import json
import socket

parser = argparse.ArgumentParser()
parser.add_argument("--job_name", choices=("ps", "worker"))
parser.add_argument("--task_index", type=int)
parser.add_argument("--ps_hosts", type=lambda text: text.split(","))
parser.add_argument("--worker_hosts", type=lambda text: text.split(","))
given = parser.parse_args()
host, _, port = getattr(given, f"{given.job_name}_hosts")[given.task_index].rpartition(":")
with socket.create_server((host, int(port))) as own:
    if given.job_name == "ps":
        while True:
            connection, _ = own.accept()
            with connection:
                connection.sendall(f"parameters for {connection.makefile().readline()}".encode())
    for server in given.ps_hosts:
        host, _, port = server.rpartition(":")
        while True:
            try:
                connection = socket.create_connection((host, int(port)))
                break
            except ConnectionRefusedError:
                continue
        with connection:
            connection.sendall(f"worker {given.task_index}\\n".encode())
            print(connection.makefile().readline().strip())
print(json.dumps(vars(given)))
'''


@on_yarn_when_full
def test_the_arguments_of_tf_cnn_benchmarks_are_those_of_the_documentation(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/tf_cnn_benchmarks.py").write_text(BENCHMARKS)
    page = DOCUMENTATION.read_text(encoding="utf-8").partition("## Addresses as arguments\n")[2]
    block = page[page.index("    [application]") :].partition("\n\n|")[0]
    text = "".join(f"{line.removeprefix('    ')}\n" for line in block.split("\n"))
    (tmp_path / "f.properties").write_text(f"{text}[resources]\nmemory=64\ngcores=0\n")
    done = run("dlapp-launcher", "--wait", tmp_path / "f.properties", timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    assert "is not replaced" not in done.err
    seen = []
    for index in (0, 1):
        answer, line = printed("--container", f"worker_{index}", "--stdout", id_of(done))
        assert answer == f"parameters for worker {index}"
        given = json.loads(line)
        assert (given["job_name"], given["task_index"]) == ("worker", index)
        seen.append((given["ps_hosts"], given["worker_hosts"]))
    assert seen[0] == seen[1]
    ps, workers = seen[0]
    assert (len(ps), len(workers), len({*ps, *workers})) == (1, 2, 3)


def test_each_container_gets_its_place_the_id_and_the_first_ranks_address(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "f.properties").write_text(
        "[application]\nappname=a\ncache.models=/m\nenv.KEPT={cache.models}/x:{app_id}\n"
        "[resources]\nmemory=64\ngcores=0\n"
        "[role a]\nports=1\ninstances=2\n"
        'command=sh -c \'printf "%s\\n" "$@"; echo ${role}; echo "$KEPT"; echo "$DLAPP_CACHE_MODELS"\' {role}\n'
        "args={role_index}/{role_size} {index} {app_id} {master} {cache.models} {{role}} {:.2f} '{\"a\": 1}'\n"
        "[role b]\nservice=true\ncommand=sh -c 'echo $0; exec sleep 600' {hosts:a}\n"
    )
    done = run("dlapp-launcher", "--wait", tmp_path / "f.properties", timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    application = id_of(done)
    masters = set()
    for index in (0, 1):
        place, number, name, master, cache, *others = printed("--container", f"a_{index}", "--stdout", application)
        assert (place, number, name) == (f"{index}/2", str(index), application)
        *braces, of_shell, kept, directory = others
        assert (braces, of_shell) == (["{{role}}", "{:.2f}", '{"a": 1}'], "")
        assert cache == directory
        assert kept == f"{directory}/x:{application}"
        masters.add(master)
    (hosts,) = printed("--container", "b_0", "--stdout", application)
    assert hosts.split(",")[0] in masters
    assert len(masters) == 1


@pytest.mark.parametrize("engine", ["local", pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_each_run_has_a_target_with_its_own_id_also_when_it_is_run_again(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "f.properties").write_text(
        "[application]\nappname=a\ncommand=sh -c 'mkdir out; echo $DLAPP_APP_ID >out/id'\n"
        "[resources]\nmemory=64\ngcores=0\n"
        f"[to_hdfs]\noutput_path=out\nhdfs={engine.root}/results/{{app_id}}\n"
        "[checkpoint]\npath=out\n"
    )
    first = id_of(run("dlapp-launcher", "--wait", tmp_path / "f.properties", timeout_s=END_S))
    second = id_of(run("dlapp-launcher", "--wait", "--again", first, timeout_s=END_S))
    third = id_of(run("dlapp-launcher", "--wait", "--resume", first, timeout_s=END_S))
    found = engine.tree("results")
    for application in (first, second, third):
        assert status(application)["state"] == "FINISHED"
        (text,) = (text for name, text in found.items() if name.startswith(f"{application}/"))
        assert text == f"{application}\n"
    assert not any("{" in name for name in found)
