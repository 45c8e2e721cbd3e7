"""Input by fsspec on a cluster: what dlapp brings to the nodes for it. tests/storage/test_remote.py has the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run
from tests.engines import Engine
from tests.services.http.http_server import Answer, http_server


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_web_input_needs_no_library_on_the_nodes_and_other_schemes_are_refused(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")
    # Of no virtual environment, so it has none of our libraries.
    monkeypatch.setenv("DLAPP_YARN_PYTHON", os.path.realpath(sys.executable))
    script = 'test "$(cat in/a.txt)" = "of the web"'
    with http_server(lambda _: Answer(body=b"of the web\n")) as url:
        file = properties(tmp_path, script, from_hdfs={"hdfs": f"{url}/a.txt", "input_path": "in"})
        view = ended(launch(file))
    assert view["cause"] == "succeeded", view["diagnostics"]
    section = {"hdfs": "s3://bucket/a.txt", "input_path": "in"}
    refused = run("dlapp-launcher", properties(tmp_path, script, name="other", from_hdfs=section))
    assert refused.code == 2, refused.out
    assert "from_hdfs.hdfs: the nodes cannot read s3://" in refused.err
    assert "s3fs" in refused.err
    assert "storage.node_schemes" in refused.err
