"""A feed of a whole application, from HDFS: divided, and continued from a checkpoint. tests/task/feed has the rest."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

import pytest

from dlapp.errors import NotFound
from tests.applications import BIN, ended, launch, properties, wait_for
from tests.engines import Engine

PROGRAM = """
import os, sys, time
import dlapp_context
was = dlapp_context.resume_from()
seen = open("model/seen").read().split() if was else []
for record in dlapp_context.feed():
    seen += [record.decode()] if isinstance(record, bytes) else record.column("line").to_pylist()
    if len(seen) % 5 == 0:
        os.makedirs("model", exist_ok=True)
        with open("model/new", "w") as file:
            print(*seen, file=file)
        os.rename("model/new", "model/seen")
        dlapp_context.checkpoint("model")
    if len(seen) == 12 and not was:
        while not os.path.exists(os.environ["COPIED"]):
            time.sleep(0.1)
        sys.exit(1)
os.makedirs("output")
with open("output/seen", "w") as file:
    print(*seen, file=file)
"""


KINDS = ("lines", "parquet") if importlib.util.find_spec("pyarrow") is not None else ("lines",)
"""pyarrow is installed by make test-frameworks."""


def content_of(kind: str, lines: list[str]) -> bytes:
    """Return a file of a format with these lines."""
    if kind == "lines":
        return "".join(f"{line}\n" for line in lines).encode()
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"line": lines}), out, row_group_size=2)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_each_record_is_read_once_in_each_epoch_also_by_containers_that_begin_again(
    engine: Engine, tmp_path: Path, kind: str
) -> None:
    for number in range(10):
        engine.put(f"lines/{number}", content_of(kind, [f"{number}-{line}" for line in range(6)]))
    file = properties(
        tmp_path,
        "exec python3 read.py",
        application={"env.PATH": f"{BIN}:/usr/bin:/bin", "env.COPIED": tmp_path / "copied"},
        resources={"containers": 2, "retries": 2},
        from_hdfs={
            "hdfs": f"{engine.root}/lines/*",
            "input_path": "lines",
            "mode": "feed",
            "feed.format": kind,
            "feed.epochs": 2,
            "feed.shuffle": 5,
        },
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/out"},
        checkpoint={"path": "model", "every": "1s", "role": "all"},
    )
    (tmp_path / "test_workspace/read.py").write_text(PROGRAM)
    application = launch(file)
    place = f"out.checkpoints/{application}"

    def are_copied() -> bool:
        with contextlib.suppress(FileNotFoundError, NotFound):
            return all(any(name.endswith(".json") for name in engine.names(f"{place}/{index}")) for index in (0, 1))
        return False

    wait_for("a checkpoint of both", are_copied)
    (tmp_path / "copied").touch()
    view = ended(application)
    assert view["cause"] == "succeeded", view["diagnostics"]
    seen = [line for text in engine.tree("out").values() for line in text.split()]
    assert sorted(seen) == sorted(2 * [f"{number}-{line}" for number in range(10) for line in range(6)])
    assert view["containers"][0]["receipt"]["bytes"]["input"] > 0
