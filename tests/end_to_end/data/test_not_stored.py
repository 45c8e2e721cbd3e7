"""Files of a program that were not stored are named when its application has ended: by every way to ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.applications import Done, properties, run
from tests.services.containers.dockerd import IMAGE, Dockerd

END_S = 180.0


def ended(file: Path, code: int = 0) -> tuple[Done, dict[str, Any]]:
    """Run an application to its end: what ``--wait`` says, and ``dlapp-status --json``."""
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
    assert done.code == code, done.out + done.err
    return done, json.loads(run("dlapp-status", "--json").out)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("not stored")]


def stored(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def output_to(place: Path) -> Mapping[str, object]:
    return {"output_path": "output", "hdfs": f"file://{place}"}


def test_links_out_of_the_output_are_stored_and_unstored_files_named(tmp_path: Path) -> None:
    script = """
mkdir -p output/deep checkpoints runs/3
echo weights >checkpoints/e5.pt; echo log >runs/3/log
ln -s ../checkpoints/e5.pt output/best.pt
ln -s ../runs/3 output/latest
ln -s ../../checkpoints output/deep/all
ln -s "$PWD/checkpoints/e5.pt" output/absolute.pt
ln checkpoints/e5.pt output/hard.pt
ln -s /etc/passwd output/far; ln -s ../nothing output/gone
mkfifo output/deep/pipe; echo real >output/real
"""
    done, seen = ended(properties(tmp_path, script, to_hdfs=output_to(tmp_path / "result")))
    assert stored(tmp_path / "result") == {
        "best.pt": "weights\n",
        "absolute.pt": "weights\n",
        "hard.pt": "weights\n",
        "latest/log": "log\n",
        "deep/all/e5.pt": "weights\n",
        "real": "real\n",
    }
    expected = [
        "not stored : output/deep/pipe (a FIFO)",
        "not stored : output/far (a link out of the workspace, to /etc/passwd)",
        "not stored : output/gone (a link to nothing, ../nothing)",
    ]
    assert lines_of(done.out) == expected
    assert lines_of(run("dlapp-status").out) == expected
    (one,) = seen["containers"]
    assert one["not_stored"] == {
        "entries": [
            {"name": "output/deep/pipe", "reason": "a FIFO"},
            {"name": "output/far", "reason": "a link out of the workspace, to /etc/passwd"},
            {"name": "output/gone", "reason": "a link to nothing, ../nothing"},
        ],
        "more_entries": 0,
        "files": [],
        "more_files": 0,
        "all_files_found": True,
    }
    waited = run("dlapp-launcher", "--wait", "--json", tmp_path / "test.properties", "--set", "to_hdfs.overwrite=true")
    assert json.loads(waited.out)["containers"][0]["not_stored"] == one["not_stored"], waited.err


def test_the_database_beside_the_output_is_named_with_its_size_and_the_others_are_counted(tmp_path: Path) -> None:
    script = """
mkdir -p output/0 src/__pycache__ .cache
echo artifact >output/0/model
head -c 1258291 /dev/zero >mlflow.db
echo x >src/a; echo xx >src/b; echo 'changed, and now longer' >>shipped; echo y >>lost
echo c >src/__pycache__/m.pyc; echo c >.cache/blob
"""
    file = properties(tmp_path, script, to_hdfs=output_to(tmp_path / "result"))
    (tmp_path / "test_workspace/shipped").write_text("from the workspace\n")
    (tmp_path / "test_workspace/kept").write_text("unchanged\n")
    done, seen = ended(file)
    expected = ["not stored : mlflow.db (1.2 MiB), shipped (43 bytes), src/b (3 bytes), 2 other new files"]
    assert lines_of(done.out) == lines_of(run("dlapp-status").out) == expected
    files = seen["containers"][0]["not_stored"]["files"]
    assert [(item["name"], item["size_bytes"]) for item in files] == [
        ("mlflow.db", 1258291),
        ("shipped", 43),
        ("src/b", 3),
        ("lost", 2),
        ("src/a", 2),
    ]


def test_a_program_without_an_output_gets_the_names_of_lost_files(tmp_path: Path) -> None:
    done, seen = ended(properties(tmp_path, "echo 12345 >result.txt"))
    assert lines_of(done.out) == ["not stored : result.txt (6 bytes)"]
    assert seen["containers"][0]["not_stored"]["more_files"] == 0
    done, seen = ended(properties(tmp_path, "echo nothing made", name="quiet"))
    assert (lines_of(done.out), seen["containers"][0]["not_stored"]) == ([], None)


def test_a_failed_program_gets_the_names_of_lost_files_but_not_of_kept_ones(tmp_path: Path) -> None:
    script = "mkdir output; echo 1 >output/x; echo 1 >metrics.csv; exit 3"
    done, _ = ended(properties(tmp_path, script, to_hdfs=output_to(tmp_path / "result")), 1)
    assert lines_of(done.out) == ["not stored : metrics.csv (2 bytes)"]
    script = "echo 1 >outptu"
    done, seen = ended(properties(tmp_path, script, name="typo", to_hdfs=output_to(tmp_path / "typo")), 1)
    assert "all of it is kept" in seen["diagnostics"], seen["diagnostics"]
    assert lines_of(done.out) == []


def test_names_of_several_containers_have_their_container_in_a_bounded_list(tmp_path: Path) -> None:
    script = "mkdir output; for n in 1 2 3 4 5 6; do mkfifo output/$n; done; echo $CONTAINER_INDEX >log.txt"
    done, seen = ended(
        properties(tmp_path, script, resources={"containers": 2}, to_hdfs=output_to(tmp_path / "result")),
    )
    lines = lines_of(done.out)
    assert lines[:2] == [
        "not stored : output/1 of container 0 (a FIFO)",
        "not stored : output/2 of container 0 (a FIFO)",
    ]
    assert lines[8:] == [
        "not stored : 4 more of the output",
        "not stored : log.txt of container 0 (2 bytes), log.txt of container 1 (2 bytes)",
    ]
    assert [len(container["not_stored"]["entries"]) for container in seen["containers"]] == [6, 6]


def test_several_outputs_are_copied_with_their_link_targets(tmp_path: Path) -> None:
    script = """
mkdir model plots data; echo weights >data/best; echo raw >data/raw
ln -s ../data/best model/best; ln -s ../model/best plots/of; mkfifo plots/pipe; echo p >plots/p
"""
    sections: dict[str, Mapping[str, object]] = {
        "to_hdfs model": {"output_path": "model", "hdfs": f"file://{tmp_path}/model"},
        "to_hdfs plots": {"output_path": "plots", "hdfs": f"file://{tmp_path}/plots"},
    }
    done, _ = ended(properties(tmp_path, script, name="test", **sections))
    assert stored(tmp_path / "model") == {"best": "weights\n"}
    assert stored(tmp_path / "plots") == {"of": "weights\n", "p": "p\n"}
    assert lines_of(done.out) == ["not stored : plots/pipe (a FIFO)", "not stored : data/raw (4 bytes)"]


def test_unstored_files_of_a_sweep_are_named_by_trial(tmp_path: Path) -> None:
    script = """
mkdir output; echo m >output/m; echo made >made; ln -s ../made output/link; mkfifo output/p; echo db >mlflow.db
"""
    sweep = {"grid.x": "1, 2"}
    file = properties(tmp_path, script, sweep=sweep, to_hdfs=output_to(tmp_path / "result"))
    done, seen = ended(file)
    links = [name for name, text in stored(tmp_path / "result").items() if text == "made\n"]
    assert sorted(links) == ["trials/0/link", "trials/1/link"]
    assert lines_of(done.out) == [
        "not stored : trial 0: output/p (a FIFO)",
        "not stored : trial 1: output/p (a FIFO)",
        "not stored : trial 0: mlflow.db (3 bytes), trial 1: mlflow.db (3 bytes)",
    ]
    assert len(seen["containers"][0]["not_stored"]["files"]) == 2


def test_input_files_are_not_named_as_lost_but_files_made_beside_them_are(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "data").write_text("data\n")
    script = "mkdir output; ln -s ../in/input/data output/data; echo made >in/made"
    given = {"input_path": "in", "hdfs": f"file://{tmp_path}/input"}
    done, _ = ended(properties(tmp_path, script, from_hdfs=given, to_hdfs=output_to(tmp_path / "result")))
    assert stored(tmp_path / "result") == {"data": "data\n"}
    assert lines_of(done.out) == ["not stored : in/made (5 bytes)"]


@pytest.mark.docker
@pytest.mark.slow
def test_in_docker_links_are_understood_as_the_container_saw_them(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_CLUSTER", "local")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a").write_text("of input\n")
    script = """
mkdir -p output checkpoints runs/3; echo weights >checkpoints/e5.pt; echo log >runs/3/log; echo db >mlflow.db
ln -s /workspace/checkpoints/e5.pt output/best.pt; ln -s /workspace/runs/3 output/latest; ln -s ../in output/in
ln -s /etc/hostname output/far; ln -s /workspace/output/best.pt output/again; mkfifo output/pipe
"""
    file = properties(
        tmp_path,
        script,
        application={"docker_image": IMAGE},
        from_hdfs={"hdfs": tmp_path / "words", "input_path": "in"},
        to_hdfs=output_to(tmp_path / "result"),
    )
    done, _ = ended(file)
    assert stored(tmp_path / "result") == {
        "again": "weights\n",
        "best.pt": "weights\n",
        "in/words/a": "of input\n",
        "latest/log": "log\n",
    }
    assert lines_of(done.out) == [
        "not stored : output/far (a link out of the workspace, to /etc/hostname)",
        "not stored : output/pipe (a FIFO)",
        "not stored : mlflow.db (3 bytes)",
    ]
