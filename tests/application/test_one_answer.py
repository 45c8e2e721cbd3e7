"""Errors of the text, of the rules, of the engine and of the world come in one answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dlapp.application.build import Keywords
from dlapp.application.description import Source, UnresolvedSpec, describe
from dlapp.cluster.engine import EngineInfo
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.errors import Denied, DlappError, FileRefused, Refuse, RequestTooLarge, Unreachable, raise_error
from dlapp.launcher.submit import check
from dlapp.values.spec import AppSpec, InputSpec, OutputSpec, Resources, RoleSpec

ENGINE = EngineInfo(name="local", version="1", has_gpus=False)


class Engine(LocalEngine):
    """The engine of a machine with 16 GiB and 4 cores, which may find more errors."""

    def __init__(self, place: Path, errors: Sequence[DlappError] = ()) -> None:
        options = {"local.state_dir": str(place / "state"), "local.memory": "16g", "local.vcores": "4"}
        self.config = load_config(options, {"HOME": str(place)}, system_file=str(place / "none"))
        super().__init__(self.config)
        self.errors = errors

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        lines = super().check(spec, refuse)
        for error in self.errors:
            refuse(error)
        return lines


def refused(place: Path, source: Source | str, errors: Sequence[DlappError] = ()) -> list[str]:
    """Return the errors of an application, without the path of its file."""
    if isinstance(source, str):
        (place / "f").write_text(source)
        source = str(place / "f")
    with Engine(place, errors) as engine, pytest.raises(FileRefused) as refusal:
        check(
            describe(source, engine.config, ENGINE),
            engine.config,
            engine,
            leave_out=lambda spec: (),
            network_problem=lambda spec: "",
            resolve=str,
            registries=lambda: None,
        )
    return [one.replace(str(place), "").removeprefix("/f:") for one in refusal.value.problems]


MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\n"
FILES = "[from_hdfs]\nhdfs=missing\ninput_path=in\n[to_hdfs]\noutput_path=out\nhdfs=w/s.sh/x\n"
TOO_MUCH = "asked for 900 GiB of memory, this machine has 16 GiB of memory (local.memory can set another amount)"
UNWRITABLE = "/w/s.sh/x cannot be written: /w/s.sh is not a directory"


def test_a_file_with_four_errors_is_refused_once(place: Path) -> None:
    text = f"{MINIMAL}appnam=b\nhang_idle=true\n[resources]\nmemory=900g\n{FILES}"
    found = refused(place, text)
    assert found[0].startswith("5: application.appnam: is not known, ")
    assert found[1:4] == [
        "6: application.hang_idle: needs hang_timeout: for how long a program may be idle",
        f"8: resources.memory: {TOO_MUCH}",
        "10: from_hdfs.hdfs: /missing matches nothing",
    ]
    assert found[4].startswith("14: to_hdfs.hdfs: ")
    assert len(found) == 5


def test_the_same_as_a_spec_and_as_keywords_is_refused_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    spec = AppSpec(
        username="u",
        appname="a",
        workspace="w",
        script="none.sh",
        inputs=(InputSpec(sources=("missing",), input_path="in"),),
        outputs=(OutputSpec(output_path="out", target="w/s.sh/x"),),
        roles=(RoleSpec(resources=Resources(memory_mib=900 << 10)),),
    )
    by_spec = refused(place, UnresolvedSpec(spec, {"NV_GPU": "1"}))
    keywords = {"workspace": "w", "script": "none.sh", "memory": "900g", "vcores": "x", "contaners": 2}
    by_keywords = refused(
        place, Keywords({**keywords, "inputs": {"in": "missing"}, "outputs": {"out": "w/s.sh/x"}}, {"NV_GPU": "1"})
    )
    assert "AppSpec: application.env.NV_GPU: is set by dlapp and cannot be set here" in by_spec
    assert [one.partition(" is not a keyword")[0] for one in by_keywords if one not in by_spec] == [
        "vcores: 'x' is not a whole number",
        "contaners:",
    ]
    for one in (
        "AppSpec: application.user_shell_script: /w/none.sh: there is no such file",
        "AppSpec: from_hdfs.hdfs: /missing matches nothing",
        f"AppSpec: resources.memory: {TOO_MUCH}",
    ):
        assert one in by_spec
        assert one in by_keywords


def test_what_is_left_of_a_faulty_file_is_checked_further(place: Path) -> None:
    text = MINIMAL.replace("=w", "=nowhere") + f"[resources]\ncontainers=x\nvcores=99\n{FILES}"
    found = refused(place, text)
    assert [one.partition(":")[0] for one in found] == ["3", "6", "7", "9", "13"]
    assert "this machine has 4" in found[2]


def test_each_faulty_role_input_and_output_is_named(place: Path) -> None:
    roles = "[role a]\nscript=none.sh\nmemory=900g\n[role b]\ncommand=\n[role c]\ncommand=x\ndepends_on=d\n"
    text = f"[application]\nappname=a\nuser_dev_workspace_path=w\n{roles}" + FILES.replace("[to", "optional=maybe\n[to")
    found = refused(place, text)
    assert [one.partition(": ")[0] for one in found] == ["5", "6", "8", "11", "13", "15", "18"]


def test_other_errors_of_the_engine_come_with_those_of_the_file(place: Path) -> None:
    errors = (Denied("no GPUs for you"), Unreachable("Docker does not answer"))
    found = refused(place, f"{MINIMAL}hang_idle=true\n", errors)
    assert found[0].startswith("5: application.hang_idle: ")
    assert found[1:] == ["no GPUs for you", "Docker does not answer"]


@pytest.mark.parametrize("error", [Denied("no"), Unreachable("away"), RequestTooLarge("too much")])
def test_an_error_of_the_engine_alone_keeps_its_exit_code(place: Path, error: DlappError) -> None:
    with pytest.raises(type(error)) as raised:
        refused(place, MINIMAL, (error,))
    assert raised.value.exit_code == error.exit_code


def test_an_error_of_the_engine_alone_is_named_with_its_line(place: Path) -> None:
    with pytest.raises(RequestTooLarge) as raised:
        refused(place, f"{MINIMAL}[resources]\nmemory=900g\n")
    assert str(raised.value) == f"{place}/f:6: resources.memory: {TOO_MUCH}"
