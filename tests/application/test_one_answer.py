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
from dlapp.errors import (
    Denied,
    DlappError,
    FileRefused,
    Refuse,
    RequestTooLarge,
    Unreachable,
    UsageError,
    raise_error,
)
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
            docker_policy=lambda: None,
        )
    return [problem.replace(str(place), "").removeprefix("/f:") for problem in refusal.value.problems]


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
    assert [keyword.partition(" is not a keyword")[0] for keyword in by_keywords if keyword not in by_spec] == [
        "vcores: 'x' is not a whole number",
        "contaners:",
    ]
    for item in (
        "AppSpec: application.user_shell_script: /w/none.sh: there is no such file",
        "AppSpec: from_hdfs.hdfs: /missing matches nothing",
        f"AppSpec: resources.memory: {TOO_MUCH}",
    ):
        assert item in by_spec
        assert item in by_keywords


def test_a_location_of_a_spec_that_is_none_has_one_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    spec = AppSpec(
        username="u",
        appname="a",
        workspace="w",
        script="s.sh",
        inputs=(InputSpec(sources=("s3:/x",), input_path="in"),),
        outputs=(OutputSpec(output_path="out", target="a*"),),
    )
    assert refused(place, UnresolvedSpec(spec, {})) == [
        "AppSpec: from_hdfs.hdfs: 's3:/x' is not a location, such as s3://bucket/name",
        "AppSpec: to_hdfs.hdfs: 'a*' is a pattern; output goes to one place",
    ]


def test_the_rest_of_an_invalid_file_is_checked_too(place: Path) -> None:
    text = MINIMAL.replace("=w", "=nowhere") + f"[resources]\ncontainers=x\nvcores=99\n{FILES}"
    found = refused(place, text)
    assert [item.partition(":")[0] for item in found] == ["3", "6", "7", "9", "13"]
    assert "this machine has 4" in found[2]


def test_each_faulty_role_input_and_output_is_named(place: Path) -> None:
    roles = "[role a]\nscript=none.sh\nmemory=900g\n[role b]\ncommand=\n[role c]\ncommand=x\ndepends_on=d\n"
    text = f"[application]\nappname=a\nuser_dev_workspace_path=w\n{roles}" + FILES.replace("[to", "optional=maybe\n[to")
    found = refused(place, text)
    assert [item.partition(": ")[0] for item in found] == ["5", "6", "8", "11", "13", "15", "18"]


def test_engine_errors_are_reported_with_those_of_the_file(place: Path) -> None:
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


WORLD = "[resources]\nmemory=900g\n[from_hdfs]\nhdfs=missing\ninput_path=in\n"


@pytest.mark.parametrize(
    "more",
    [
        "[checkpoint]\npath=m\n",
        "[to_hdfs]\nhdfs=s3://x\noutput_path=out\n[checkpoint]\npath=m\n",
        "[sweep]\ngrid.x=1,2\nmetric=loss\n",
        "[sweep]\nrandom.x=uniform(0, 1)\n",
        "[role a]\nservice=true\n",
        "[sweep]\ngrid.x=1, 2\n[role a]\n",
        "[to_hdfs]\noutput_path=/abs\nhdfs=w/s.sh/x\n",
        "[role a]\n[role b]\ndepends_on=c\n[checkpoint]\nhdfs=s3://x\n",
    ],
)
def test_no_error_hides_those_of_the_engine_and_the_world(place: Path, more: str) -> None:
    found = refused(place, f"{MINIMAL}{WORLD}{more}")
    assert len(found) >= 3
    assert [item for item in found if "900 GiB" in item]
    assert "8: from_hdfs.hdfs: /missing matches nothing" in found


CHECKPOINT = "[checkpoint]\npath=.\nrole=zzz\n"
PREVIOUS = "[to_hdfs]\nhdfs=s3://x\noutput_path=o\nkeep_previous=2\n"
SAME = "[to_hdfs a]\noutput_path=a\nhdfs=t\n[to_hdfs b]\noutput_path=b\nhdfs=t\n"


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            MINIMAL.replace("s.sh", "none.sh") + "[role a]\ndepends_on=zzz\n",
            ["4: application.user_shell_script", "6: role a.depends_on"],
        ),
        (MINIMAL + CHECKPOINT, ["5: checkpoint.hdfs", "6: checkpoint.path", "7: checkpoint.role"]),
        (f"{MINIMAL}[to_hdfs]\nhdfs=s3://x\n", ["5: to_hdfs.output_path", "6: to_hdfs.hdfs"]),
        (f"{MINIMAL}[to_hdfs]\noutput_path=../x\n", ["5: to_hdfs.hdfs", "6: to_hdfs.output_path"]),
        (MINIMAL + PREVIOUS, ["6: to_hdfs.hdfs", "8: to_hdfs.keep_previous"]),
        (f"{MINIMAL}[to_hdfs]\noutput_path=out\n[checkpoint]\npath=m\n", ["5: to_hdfs.hdfs"]),
        (f"{MINIMAL}tensorboard=true\n[to_hdfs]\nhdfs=res\n", ["6: to_hdfs.output_path"]),
        (f"{MINIMAL}hang_timeout=abc\nhang_idle=true\n", ["5: application.hang_timeout"]),
        ("[applicaton]\nappname=x\ncommand=true\n", ["1: application", "1: applicaton"]),
        ("[application]\nappname=x\nkind=service\n", ["3: application.kind"]),
        (f"[application]\nappname=x\ncommand=true\n{SAME}", ["9: to_hdfs b.hdfs"]),
    ],
)
def test_no_error_hides_another_or_is_named_for_it(place: Path, text: str, errors: list[str]) -> None:
    assert sorted(": ".join(item.split(": ")[:2]) for item in refused(place, text)) == errors


def test_each_amount_that_is_too_large_is_named_with_its_own_line(place: Path) -> None:
    found = refused(place, f"{MINIMAL}[role judge]\nmemory=900g\nvcores=99\n")
    assert [text.partition(": asked")[0] for text in found] == ["6: role judge.memory", "7: role judge.vcores"]


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"inputs": {"a/b": "d", "a_b": "e"}}, ["inputs: 'a_b' and 'a/b' both get the name 'a_b'"]),
        ({"outputs": {"a/b": "d", "a_b": "e"}}, ["outputs: 'a_b' and 'a/b' both get the name 'a_b'"]),
        ({"inputs": {"in": {"mode": "feed"}}}, ["inputs.in.hdfs: is missing"]),
        ({"inputs": {"in": []}}, ["AppSpec: from_hdfs.hdfs: is empty"]),
        ({"inputs": {"in": {"hdfs": "w", "input_path": "q"}}}, ["inputs.in.input_path: is the key of the mapping"]),
        ({"outputs": {"out": {"overwrite": True}}}, ["outputs.out.hdfs: is missing"]),
        ({"outputs": [], "overwrite": True}, ["overwrite: is for a mapping"]),
        ({"outputs": {"o": "\ud800"}}, ["outputs: has the character U+D800 in it"]),
        ({"checkpoint": {"hdfs": "d"}}, ["checkpoint.path: is missing"]),
        ({"roles": {"a": {"args": "x 'y"}}}, ["roles.a.args: the quote ' before 'y' does not close"]),
        ({"roles": {"a": {"env": {"T": b"hunter2"}}}}, ["roles.a.env.T: is of type bytes, it must be text (str)"]),
        ({"keep_failed": 10**400}, ["keep_failed: is too large a number, the maximum is 86400 s"]),
        ({"max_runtime": float("inf")}, ["max_runtime: is too large a number"]),
        ({"timeout": "1h"}, ["timeout: is not a keyword of an application, use max_runtime"]),
        ({"gpus": 1}, ["gpus: is not a keyword of an application, use gcores"]),
    ],
)
def test_keywords_are_complete_and_show_no_secret(
    place: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], errors: list[str]
) -> None:
    monkeypatch.chdir(place)
    description = describe(Keywords({"workspace": "w", "script": "s.sh", **fields}), Engine(place).config, ENGINE)
    with pytest.raises(UsageError) as refusal:
        description.problems.refuse()
    found = str(refusal.value).split("\n")
    assert [one[: len(error)] for one, error in zip(found, errors, strict=True)] == errors


def test_none_and_text_of_arguments_are_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    fields = {"workspace": "w", "overwrite": None, "roles": {"a": {"script": "s.sh", "args": "x 'y z'"}}}
    application = describe(Keywords(fields), Engine(place).config, ENGINE).application
    assert application is not None
    assert application.spec.roles[0].args == ("x", "y z")


def test_three_thousand_caches_of_one_path_have_one_error_each(place: Path) -> None:
    caches = "".join(f"cache.c{n}=/c\n" for n in range(3000))
    found = refused(place, f"[application]\nappname=a\ncommand=x\n{caches}")
    assert (len(found), found[-1]) == (101, " 2900 more errors")  # without its path
