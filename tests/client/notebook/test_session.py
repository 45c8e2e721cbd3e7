"""A notebook is an application with the image, amounts and input of another one, and nothing else of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dlapp.client import Client
from dlapp.client.notebook.session import default_target, notebook_spec, ready_port, start_notebook
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.value import replace
from dlapp.values.spec import AppSpec, CheckpointSpec, InputSpec, OutputSpec, Resources, RoleSpec

SPEC = AppSpec(
    username="tony",
    appname="digits",
    workspace="/home/tony/digits",
    script="train.sh",
    docker_image="net:1",
    network="none",
    tags=("a",),
    inputs=(InputSpec(input_path="data", sources=("file:///data/mnist",)),),
    outputs=(OutputSpec(output_path="out", target="file:///results/run"),),
    checkpoint=CheckpointSpec(path="checkpoints", target="file:///checkpoints", role="all"),
    roles=(
        RoleSpec(name="chief", resources=Resources(memory_mib=2048, gcores=2), docker_image="chief:1", retries=3),
        RoleSpec(name="worker", instances=8),
    ),
    kill_grace_s=10.0,
    hold=True,
)


def make_spec(**options: object) -> AppSpec:
    given = {"gcores": None, "idle_s": 600, "target": "file:///saved", "env": ["A", "JUPYTER_TOKEN"], **options}
    return notebook_spec(SPEC, **given)  # type: ignore[arg-type]


def test_a_notebook_is_one_container_like_the_first_role_with_its_input() -> None:
    spec = make_spec()
    (role,) = spec.roles
    assert (role.name, role.instances, role.resources) == ("notebook", 1, SPEC.roles[0].resources)
    assert (spec.image_of(role), spec.network, spec.inputs, spec.workspace) == (
        "chief:1",
        "none",
        SPEC.inputs,
        SPEC.workspace,
    )
    assert spec.tags == ("a", "notebook")
    assert make_spec(gcores=0).roles[0].resources == replace(SPEC.roles[0].resources, gcores=0)


def test_a_notebook_spec_drops_run_keys_and_stores_workspace_changes() -> None:
    spec = make_spec()
    assert spec.outputs == (OutputSpec(output_path=".dlapp-notebook", target="file:///saved"),)
    assert (spec.checkpoint, spec.script, spec.hold, spec.roles[0].retries) == (None, "", False, 0)
    assert spec.kill_grace_s == 60.0


def test_the_token_is_not_in_the_command() -> None:
    spec = make_spec()
    assert spec.env == ("A", "JUPYTER_TOKEN")
    words = spec.program_of(spec.roles[0]).command
    assert words[:2] == ("sh", "-c")
    assert words[3:] == (
        *("dlapp-notebook", "--idle", "600", "--grace", "60", "--save", ".dlapp-notebook", "--without", "data"),
    )


def test_start_files_and_dlapps_settings_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.env").write_text("A=1\n")
    (tmp_path / "secret.env").chmod(0o600)
    (tmp_path / "app.properties").write_text(
        "[application]\nusername=tony\nappname=a\nuser_dev_workspace_path=.\nuser_shell_script=train.sh\n"
        "env_file=secret.env\n[resources]\ngcores=0\n"
    )
    client = SimpleNamespace(
        config=load_config({}, environ={}),
        engine=SimpleNamespace(info=lambda: EngineInfo(name="local", version="1", has_gpus=False)),
        state_path=str(tmp_path / "state"),
        submit=lambda *_, **__: None,
    )
    for path, own in ((str(tmp_path / "app.properties"), {"app.properties", "secret.env"}), (None, set())):
        made = start_notebook(
            cast(Client, client), path, gcores=0, idle_s=600, save=None, say=lambda _: None, note=lambda _: None
        )
        assert {str(tmp_path / name) for name in (*own, "state")} <= set(made.trusted)


def test_files_are_stored_beside_the_workspace_or_in_the_hdfs_home_directory() -> None:
    here = EngineInfo(name="local", version="1", has_gpus=False)
    assert default_target(SPEC, here, "now") == "file:///home/tony/digits.notebooks/now"
    assert default_target(SPEC, replace(here, paths_on_hdfs=True), "now") == "notebooks/digits/now"


@pytest.mark.parametrize(("metrics", "port"), [({"port": 8888.0}, 8888), ({}, None), ({"port": 0.5}, None)])
def test_an_impossible_port_is_refused(metrics: dict[str, float], port: int | None) -> None:
    assert ready_port(metrics) == port
    assert ready_port({"port": 1e300}) is None
