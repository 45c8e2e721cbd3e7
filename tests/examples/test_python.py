"""The examples of docs/python.md run as they stand there, and print what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dlapp import (
    Application,
    ApplicationId,
    AppSpec,
    Client,
    InputSpec,
    OutputSpec,
    PayloadCache,
    Resources,
    RoleSpec,
    as_completed,
)
from dlapp.application.keywords import KEYWORDS, MAPPINGS, SECTION_KEYWORDS
from dlapp.errors import FileRefused, NotFound, SpecError, TimedOut, UsageError

CODE = {"workspace": "code", "script": "start.sh"}
PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def examples() -> list[tuple[str, str]]:
    """Each example, with what it prints."""
    found = re.findall(r"```python\n(.*?)```\n\nprints\n\n((?: {4}[^\n]*\n)+)", PAGE.read_text(), re.DOTALL)
    return [(code, textwrap.dedent(printed)) for code, printed in found]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the page speaks of, as the working directory."""
    script = tmp_path / "code" / "start.sh"
    script.parent.mkdir()
    text = PAGE.read_text().partition("`code/start.sh` with\n\n")[2].partition("\n\n")[0]
    script.write_text(textwrap.dedent(text) + "\n")
    script.chmod(0o755)
    (tmp_path / "dl_app.properties").write_text(
        "[application]\nappname=a\nuser_dev_workspace_path=code\nuser_shell_script=start.sh\nuser_shell_args=x\n"
        "[resources]\nmemory=64\ngcores=0\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_example_prints_the_output_of_its_page(place: Path) -> None:
    assert len(examples()) == PAGE.read_text().count("```python") == 5
    for code, printed in examples():
        done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (printed, "")


def test_the_page_has_every_keyword() -> None:
    page = PAGE.read_text()
    renamed = [name for name, (_, key) in KEYWORDS.items() if name != key and name != "containers"]
    names = (*renamed, *MAPPINGS, *SECTION_KEYWORDS, "command", "args", "env")
    assert [name for name in names if f"`{name}`" not in page] == []


def spec(**fields: object) -> AppSpec:
    given = {"username": "u", "appname": "a", "workspace": "code", "script": "start.sh", **fields}
    return AppSpec(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"workspace": "other"},
            "AppSpec: application.user_dev_workspace_path: {place}/other: there is no such ",
        ),
        (
            {"script": "other.sh"},
            "AppSpec: application.user_shell_script: {place}/code/other.sh: there is no such ",
        ),
        ({"env": ("A", "B")}, "AppSpec: application.env: has no value for A, B"),
        ({"kill_grace_s": 1e6}, "AppSpec: application.kill_grace: is 1e+06 s, the maximum allowed here is 3600 s"),
        (
            {"inputs": (InputSpec(sources=("none/*",), input_path="in"),)},
            "AppSpec: from_hdfs.hdfs: {place}/none/* matches nothing",
        ),
        (
            {"outputs": (OutputSpec(output_path="output", target="."),)},
            "AppSpec: to_hdfs.hdfs: {place} would overwrite the workspace",
        ),
        (
            {"roles": (RoleSpec(script="x.sh"),)},
            "AppSpec: role worker.script: {place}/code/x.sh: there is no such file",
        ),
        ({"roles": (RoleSpec(), RoleSpec(name="ps", env=("A",)))}, "AppSpec: role ps.env: has no value for A"),
    ],
)
def test_a_spec_that_cannot_run_is_refused_with_its_field(place: Path, fields: dict[str, object], message: str) -> None:
    with Client() as client, pytest.raises(FileRefused) as refused:
        client.submit(spec(**fields))
    assert refused.value.problems[0].startswith(message.format(place=place)), refused.value.problems


def test_variables_of_roles_are_checked_like_those_of_all(place: Path) -> None:
    with Client() as client:
        with pytest.raises(FileRefused, match=r"AppSpec: role worker\.env\.NV_GPU: "):
            client.submit(spec(), role_env={"worker": {"NV_GPU": "0"}})
        with pytest.raises(FileRefused, match="AppSpec: role_env: has variables for ps, and there is no such role"):
            client.submit(spec(), role_env={"ps": {"A": "b"}})
        with pytest.raises(UsageError, match="role_env is for a spec"):
            client.submit("dl_app.properties", role_env={"worker": {"A": "b"}})


def test_a_variable_that_no_program_can_have_is_refused_with_its_name(place: Path) -> None:
    for name, value in (("NV_GPU", "0"), ("A", "a\0b")):
        with Client() as client, pytest.raises(FileRefused, match=f"AppSpec: application.env.{name}: "):
            client.submit(spec(), env={name: value})


def test_a_file_can_be_changed_for_one_submission(place: Path) -> None:
    with Client() as client:
        application = client.submit(
            place / "dl_app.properties",
            overrides={"resources.containers": 2, "application.appname": "other"},
            env={"GREETING": "hi"},
            args=["--seed={index}"],
        )
        assert application.wait(240).appname == "other"
        assert application.logs(1, "stdout") == "hi from 1\n"
        assert (place / "code" / "output").exists() is False
        with pytest.raises(FileRefused) as refused:
            client.submit("dl_app.properties", overrides={"resources.vcores": 0}, env={"NV_GPU": "1"})
    assert refused.value.problems == (
        "overrides: resources.vcores: is 0, the minimum is 1",
        "env: NV_GPU: is set by dlapp and cannot be set here",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "spec", "overrides": {"resources.vcores": 1}}, "overrides are for a file"),
        ({"source": "spec", "args": ["x"]}, "args and overrides are for a file"),
        ({"source": "dl_app.properties", "args": "x y"}, "args: is not a list of words"),
        ({"source": "dl_app.properties", "containers": 2}, "containers: keywords describe an application without"),
        ({}, "workspace: is missing; give a properties file, an AppSpec, or workspace and script"),
        ({"workspace": "code"}, "script: is missing"),
        ({**CODE, "command": "true"}, "command: is given, and so is script"),
        ({"command": 3}, "command: is 3, it must be a list of words"),
        ({"command": "-x"}, "command: begins with '-x', which is an option"),
        ({**CODE, "gang": "al"}, "gang: is 'al', allowed are all, role, none"),
        ({**CODE, "depends_on": "a"}, r"depends_on: is not a keyword of an application, use roles=\{"),
        ({**CODE, "contaners": 2}, "contaners: is not a keyword of an application, the nearest is containers"),
        ({**CODE, "pass_env": "1A"}, "pass_env: 1A: '1A' is not the name of a variable"),
        ({**CODE, "optional": True}, r"optional: is not a keyword of an application, use inputs=\[InputSpec"),
        ({**CODE, "memory": "4x"}, "memory: '4x' is not an amount of memory"),
        ({**CODE, "max_runtime": "soon"}, "max_runtime: 'soon' is not a duration"),
        ({**CODE, "containers": 0}, "containers: is 0, the minimum is 1"),
        ({**CODE, "placement": "far"}, "placement: is 'far', allowed are pack, spread"),
        ({**CODE, "overrides": {"resources.vcores": 1}}, "give the keywords themselves"),
        ({**CODE, "script": "none.sh"}, "AppSpec: application.user_shell_script: .* there is no such file"),
    ],
)
def test_invalid_application_descriptions_are_refused(place: Path, given: dict[str, Any], message: str) -> None:
    if given.get("source") == "spec":
        given = {**given, "source": spec()}
    with Client() as client, pytest.raises(UsageError, match=message):
        client.submit(**given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"args": [1, 2]}, "args[0]"),
        ({"args": 1}, "args"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {1: "A"}}, "env"),
        ({"env": ["A"]}, "env"),
        ({"gcores": "many"}, "gcores"),
        ({"gcores": 0.5}, "gcores"),
        ({"containers": [2]}, "containers"),
        ({"priority": "high"}, "priority"),
        ({"exclude_defaults": "no"}, "exclude_defaults"),
        ({"max_runtime": [1]}, "max_runtime"),
        ({"docker_image": 5}, "docker_image"),
        ({"script": 5}, "script"),
        ({"tags": [1]}, "tags"),
        ({"on_container_failure": "go"}, "on_container_failure"),
        ({"inputs": {"in": 1}}, "inputs"),
        ({"inputs": "data"}, "inputs"),
        ({"outputs": {1: "target"}}, "outputs"),
        ({"outputs": ["target"]}, "outputs"),
        ({"caches": ["/models"]}, "caches"),
        ({"caches": {1: "/models"}}, "caches"),
        ({"caches": {"models": 1}}, "caches"),
        ({"caches": {"models": "models"}}, "application.cache.models"),
        ({"outputs": [OutputSpec(output_path="o", target="t")], "overwrite": True}, "overwrite"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_keyword(place: Path, given: dict[str, Any], field: str) -> None:
    with Client() as client, pytest.raises(SpecError) as refused:
        client.submit(**{**CODE, **given})
    assert refused.value.field == field
    if field == "env.A":
        assert refused.value.problem == "is of type int, it must be text (str)"


def test_a_file_is_not_given_arguments_or_variables_that_are_no_text(place: Path) -> None:
    with Client() as client:
        for given in ({"args": [1]}, {"env": {"A": 1}}):
            with pytest.raises(SpecError, match="must be text"):
                client.submit("dl_app.properties", **given)


def test_keywords_take_the_words_of_a_file_and_specs_of_input(place: Path) -> None:
    with Client() as client:
        application = client.submit(
            workspace="code",
            script="start.sh",
            args=["x"],
            containers="2",
            memory="64m",
            gcores="auto",
            output_patience="1m",
            service_patience="2m",
            on_container_failure="continue",
            inputs=[InputSpec(sources=("none/*",), input_path="old", optional=True)],
            outputs=[OutputSpec(output_path="output", target="results", overwrite=True, keep_previous=2)],
            caches={"models": "/models"},
        )
        application.wait(240)
        submitted = client.engine.submission(application.application_id).spec
    has_gpus = client.engine.info().has_gpus
    assert submitted.roles[0].instances == 2
    assert submitted.roles[0].resources == Resources(memory_mib=64, vcores=1, gcores=int(has_gpus))
    assert (submitted.output_patience_s, submitted.service_patience_s) == (60.0, 120.0)
    assert submitted.on_container_failure.value == "continue"
    assert submitted.inputs[0].optional
    assert submitted.outputs[0].keep_previous == 2
    assert submitted.caches == (PayloadCache("models", "/models"),)
    assert (place / "results/1/result").read_text() == "x\n"


def test_as_completed_refuses_values_that_are_not_applications() -> None:
    for wrong in (["last"], "last"):
        with pytest.raises(UsageError, match="as_completed takes"):
            next(as_completed(wrong))  # type: ignore[arg-type]


def test_keywords_have_the_same_effect_as_a_file(place: Path) -> None:
    (place / "data").mkdir()
    (place / "data/a").write_text("1")
    with Client() as client:
        application = client.submit(
            workspace="code",
            script="start.sh",
            args=["x"],
            env={"GREETING": "hi"},
            containers=2,
            memory="64m",
            gcores=0,
            retries=1,
            inputs={"in/a": "data/*", "in/b": ["data/a"]},
            outputs={"output": place / "results"},
            overwrite=True,
            max_runtime="1h30m",
            tags="t",
            exclude="*.o",
        )
        application.wait(240)
        submitted = client.engine.submission(application.application_id).spec
        assert application.outputs() == {"": str(place / "results")}
        assert application.output() == str(place / "results")
    assert (submitted.appname, submitted.args, submitted.env) == ("start.sh", ("x",), ("GREETING",))
    assert submitted.roles == (
        RoleSpec(instances=2, resources=Resources(memory_mib=64, vcores=1, gcores=0), retries=1),
    )
    assert (submitted.max_runtime_s, submitted.tags, submitted.exclude) == (5400.0, ("t",), ("*.o",))
    assert [(source.name, source.input_path) for source in submitted.inputs] == [("in_a", "in/a"), ("in_b", "in/b")]
    assert (submitted.outputs[0].output_path, submitted.outputs[0].overwrite) == ("output", True)
    assert (place / "results/1/result").read_text() == "x\n"


def test_text_names_an_application_everywhere(place: Path) -> None:
    with Client() as client:
        application = client.submit("dl_app.properties")
        number = application.id.rpartition("_")[2]
        assert client.wait("last", timeout_s=240) == client.status(number) == application.status()
        assert client.application(number) == client.application("last") == application
        assert {application, client.application("last")} == {application}
        assert b"".join(piece.data for piece in client.logs(number, streams=["stdout"])) == b" from 0\n"
        assert client.log_files("last")[0].index == 0
        with pytest.raises(NotFound):
            client.application("application_1_0001")
        others = [client.submit("dl_app.properties") for _ in range(2)]
        for item in as_completed(others, timeout=240):
            assert item.status().state.ended
        client.remove(application)
        client.remove([others[0].id, others[1].application_id])
        for item in (application, *others):
            with pytest.raises(NotFound):
                item.status()


def test_the_repr_of_an_application_is_short_and_notebooks_show_its_state(place: Path) -> None:
    with Client() as client:
        application = client.submit("dl_app.properties", overrides={"application.appname": "<b>&"})
        assert (str(application), repr(application)) == (application.id, f"<Application {application.id}>")
        view = application.wait(240)
        assert repr(view) == f"<ApplicationView {application.id} FINISHED, succeeded>"
        shown = application._repr_html_()
        assert "&lt;b&gt;&amp;" in shown
        assert "<td>FINISHED, succeeded</td>" in shown
        unknown = Application(client, ApplicationId(1, 1))
        assert unknown._repr_html_().startswith("<b>application_1_0001</b>: ")


def test_logs_are_text_as_dlapp_logs_prints_it(place: Path) -> None:
    (place / "code/start.sh").write_text("#!/bin/sh\nprintf 'a\\nb'; printf '\\377\\n' >&2\n")
    with Client() as client:
        application = client.submit("dl_app.properties", overrides={"resources.containers": 2})
        application.wait(240)
        assert application.logs() == "".join(f"[{n}] a\n[{n}] b\n[{n} err] \ufffd\n" for n in (0, 1))
        assert application.logs(1, "stdout") == "a\nb"
        assert application.logs(1) == "[1] a\n[1] b\n[1 err] \ufffd\n"
        assert application.logs(stream="stdout", last_lines=1) == "[0] b\n[1] b\n"
        with pytest.raises(NotFound):
            application.logs(2)
        with pytest.raises(NotFound, match="has no committed output, not one"):
            application.output()


def test_applications_are_yielded_as_they_end(place: Path) -> None:
    (place / "code/start.sh").write_text(f'#!/bin/sh\nuntil [ -e "{place}/$1" ]; do sleep 0.01; done\n')
    with Client() as client:
        slow, quick = (client.submit("dl_app.properties", args=[name]) for name in ("slow", "quick"))
        with pytest.raises(TimedOut, match="2 applications have not ended within 0 s"):
            next(as_completed([slow, quick], timeout=0))
        with pytest.raises(TimedOut):
            slow.wait(timeout=0)
        (place / "quick").touch()
        ended = as_completed([slow, quick, slow], timeout=240)
        assert next(ended) == quick
        (place / "slow").touch()
        assert list(ended) == [slow]
        assert list(as_completed([])) == []


def test_a_spec_is_submitted_unchanged(place: Path) -> None:
    roles = (RoleSpec(instances=2, resources=Resources(memory_mib=64, vcores=1), retries=3),)
    with Client() as client:
        application = client.submit(spec(roles=roles, tags=("x",), project="p"))
        client.wait(application)
        submitted = client.engine.submission(application.application_id).spec
    assert (submitted.roles, submitted.tags, submitted.project) == (roles, ("x",), "p")
    assert submitted.workspace == str(place / "code")


def test_importing_the_package_loads_no_other_module_and_exports_the_classes() -> None:
    code = (
        "import sys; before = set(sys.modules); import dlapp; "
        "print(*sorted(set(sys.modules) - before)); from dlapp import *; print(Client.__module__, AppSpec.__module__)"
    )
    shown = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["__future__ dlapp", "dlapp.client.client dlapp.values.spec"]


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(ImportError, match="Klient"):
        exec("from dlapp import Klient")
