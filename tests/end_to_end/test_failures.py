"""Programs that fail, on every engine: the status names the cause, and what is hopeless is not started again."""

from __future__ import annotations

from pathlib import Path

from tests.applications import properties, run, status
from tests.end_to_end.test_applications import END_S
from tests.engines import Engine


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
    at = lines.index("why : the Python module nowhere_to_be_found is not installed (module_missing, fault: user)")
    offset = found["evidence"]["offset"]
    assert lines[at + 1] == f"evidence : stderr of container 0, byte {offset}"
    advice = "install it for the Python that runs the program, in its image or its virtual environment"
    assert lines[at + 3] == f"advice : {advice}"
    stderr = Path(container["log_url"].removeprefix("file://"), "stderr")
    if stderr.exists():
        assert stderr.read_bytes()[offset:].startswith(b"ModuleNotFoundError: ")


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
