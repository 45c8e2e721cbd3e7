"""Programs that fail, on every engine: the status names the cause, and what is hopeless is not started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.applications import properties, run, status
from tests.diagnosis.failures import MADE, RECORDED
from tests.end_to_end.test_applications import END_S
from tests.engines import Engine, on_yarn_when_full
from tests.services.debian import PYTHON


@on_yarn_when_full
def test_a_missing_module_is_named_and_not_tried_again(engine: Engine, tmp_path: Path) -> None:
    script = 'echo epoch 1; echo start >&2; exec python3 -c "import nowhere_to_be_found"'
    file = properties(tmp_path, script, resources={"retries": 2})
    assert run("dlapp-launcher", "--wait", file, timeout_s=END_S).code == 1
    seen = status("last")
    (container,) = seen["containers"]
    assert container["attempt"] == 1
    found = container["diagnosis"]
    assert seen["diagnosis"] == {"index": 0, "diagnosis": found}
    assert (found["rule"], found["fault"], found["retry"]) == ("module_missing", "user", False)
    assert found["evidence"]["line"] == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    lines = run("dlapp-status", "last").out.splitlines()
    index = lines.index("why : the Python module nowhere_to_be_found is not installed (module_missing, fault: user)")
    offset = found["evidence"]["offset"]
    assert lines[index + 1] == f"evidence : stderr of container 0, byte {offset}"
    advice = "install it for the Python that runs the program, in its image or its virtual environment"
    assert lines[index + 3] == f"advice : {advice}"
    stderr = Path(container["log_url"].removeprefix("file://"), "stderr")
    if stderr.exists():
        assert stderr.read_bytes()[offset:].startswith(b"ModuleNotFoundError: ")


@on_yarn_when_full
def test_a_failure_of_the_node_that_the_program_prints_does_not_count(engine: Engine, tmp_path: Path) -> None:
    script = (
        f"if mkdir {tmp_path}/first; then\n"
        "  echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1\nfi\n"
    )
    done = run("dlapp-launcher", "--wait", properties(tmp_path, script), timeout_s=END_S)
    assert done.code == 0, done.out
    (container,) = status("last")["containers"]
    (first,) = container["earlier"]
    assert (container["attempt"], first["diagnosis"]["rule"]) == (2, "gpu_memory_error")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_failed_program_without_output_is_reported_with_its_own_cause(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "1000")
    monkeypatch.setenv("DLAPP_LOCAL_MEMORY", "1000g")
    failures = {**MADE, **RECORDED}
    for number, failure in enumerate(failures.values()):
        text = failure.text or "nothing"
        (tmp_path / f"text-{number}").write_text(f"epoch 1, loss 0.3\n{text}\n")
        script = failure.script or f"cat {tmp_path}/text-{number} >&2; exit 1"
        (tmp_path / f"script-{number}").write_text(script)
    file = properties(
        tmp_path,
        f"export PYTHON={sys.executable} LC_ALL=C.UTF-8\n"
        "mkdir elsewhere; echo 0.3 >elsewhere/loss\n"
        f'exec sh -c "$(cat {tmp_path}/script-$CONTAINER_INDEX)"\n',
        resources={"containers": len(failures), "memory": "1g"},
        application={"on_container_failure": "continue"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result"},
    )
    done = run("dlapp-launcher", "--wait", file, timeout_s=3 * END_S)
    assert done.code == 1, done.out + done.err
    named = [(container["diagnosis"] or {}).get("rule") for container in status("last")["containers"]]
    wanted = [failure.rule for failure in failures.values()]
    assert dict(zip(failures, named, strict=True)) == dict(zip(failures, wanted, strict=True))


TRAIN = """
import datetime, time, torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
dist.barrier()  # a group has its timeout when its ranks find each other, too
group = dist.new_group(timeout=datetime.timedelta(seconds=10))
print("rank", dist.get_rank(), "is ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.zeros(1), group=group)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_the_rank_that_does_not_take_part_is_named(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        f"exec {PYTHON} train.py",
        application={"framework": "pytorch"},
        resources={"containers": 2, "memory": "1g"},
    )
    (tmp_path / "test_workspace/train.py").write_text(TRAIN)
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
    assert done.code == 1, done.out + done.err
    seen = status("last")
    assert seen["diagnosis"]["index"] == 0
    found = seen["diagnosis"]["diagnosis"]
    assert (found["rule"], found["fault"]) == ("collective_timeout", "user")
    assert found["cause"] == "container 1 (worker 1) did not take part in a collective operation in time"
    assert "Timed out waiting 10000ms for recv operation to complete" in found["evidence"]["line"]
    stderr = Path(seen["containers"][0]["log_url"].removeprefix("file://"), "stderr").read_bytes()
    assert stderr[found["evidence"]["offset"] :].decode().startswith(found["evidence"]["line"])
