"""Options in place of the file: the same rules, the option as the place of an error, no value of a variable shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.application.description import ResolvedApplication, read_application
from dlapp.application.overrides import Overrides, quoted_words, read_env_options, read_set_options
from dlapp.application.properties import Problems, Properties, parse_properties, read_properties
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.errors import FileRefused, UsageError
from tests.services.missing import missing

MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\n"
ENGINE = EngineInfo(name="local", version="1", has_gpus=False)


def overridden(text: str, overrides: Overrides) -> Properties:
    faults = Problems("f")
    properties = read_properties(text, "f", faults, overrides)
    faults.refuse()
    return properties


def refused(text: str, overrides: Overrides) -> list[str]:
    with pytest.raises(FileRefused) as refusal:
        overridden(text, overrides)
    return list(refusal.value.problems)


def read(place: Path, text: str, overrides: Overrides, environ: Mapping[str, str] | None = None) -> ResolvedApplication:
    (place / "w").mkdir(exist_ok=True)
    (place / "w/s.sh").write_text("#!/bin/sh\n")
    (place / "f").write_text(text)
    config = load_config(environ={"HOME": missing()}, system_file=missing())
    return read_application(str(place / "f"), config, ENGINE, overrides, environ or {})


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_command_words_become_a_value_that_splits_into_them(words: list[str]) -> None:
    properties = overridden(MINIMAL, Overrides(args=tuple(words)))
    assert properties.value("application", "user_shell_args") == tuple(words)
    assert Properties.from_json(json.loads(json.dumps(properties.to_json()))) == properties


def test_ordinary_words_stay_readable() -> None:
    assert quoted_words(["--lr", "0.1", "two words", "it's"]) == "--lr 0.1 'two words' 'it'\\''s'"
    assert quoted_words([]) == ""


def test_any_key_can_be_set_also_in_a_section_that_the_file_lacks() -> None:
    text = MINIMAL + "[from_hdfs train]\nhdfs=a\ninput_path=in\n"
    settings = {
        "resources.containers": "2",
        "application.env.A": "b",
        "from_hdfs train.hdfs": "x\n y",
        "application.appname": " n ",
    }
    says = overridden(text, Overrides(settings)).value
    assert says("resources", "containers") == 2
    assert says("application", "env.A") == "b"
    assert says("from_hdfs train", "hdfs") == ("x", "y")
    assert says("application", "appname") == "n"


def test_an_empty_override_removes_a_key() -> None:
    settings = {"application.user_shell_script": "", "application.command": "true", "resources.memory": " "}
    properties = overridden(MINIMAL + "[resources]\nmemory=1g\nvcores=2\n", Overrides(settings))
    given = {(section, key) for section, keys in properties.sections.items() for key in keys}
    assert given >= {("application", "command"), ("resources", "vcores")}
    assert given & {("application", "user_shell_script"), ("resources", "memory")} == set()
    assert overridden(MINIMAL, Overrides({"application.max_runtime": ""})) == overridden(MINIMAL, Overrides())
    assert refused(MINIMAL, Overrides({"application.user_shell_script": ""})) == refused(
        MINIMAL.replace("user_shell_script=s.sh\n", ""), Overrides()
    )


def test_an_empty_value_leaves_a_key_that_may_be_empty() -> None:
    properties = overridden(MINIMAL + "user_shell_args=a\n", Overrides({"application.user_shell_args": ""}))
    assert properties.value("application", "user_shell_args") == ()


def test_an_error_names_the_option_in_place_of_the_line() -> None:
    settings = {
        "containers": "2",
        "cpus": "2",
        "what": "2",
        "resource.memory": "1g",
        "resources.memroy": "1g",
        "resources.vcores": "0",
        "application.appname": "",
        "application.project": "a\x07",
        "role ps.x": "1",
    }
    assert sorted(refused(MINIMAL, Overrides(settings))) == [
        "--set: application.appname: is empty",
        "--set: application.project: has the control character U+0007 in it",
        "--set: containers: has no section, use resources.containers",
        "--set: cpus: has no section, use resources.vcores",
        "--set: resource: is not a section, the nearest is resources",
        "--set: resources.memroy: is not known, the nearest is memory",
        "--set: resources.vcores: is 0, the minimum is 1",
        "--set: role ps.x: there is no [role ps] in the file",
        "--set: what: has no section, write SECTION.KEY=VALUE, such as resources.memory=4g",
    ]
    assert refused(MINIMAL, Overrides(args=("\udcff",))) == [
        "the arguments after --: application.user_shell_args: are not UTF-8"
    ]


def test_a_key_of_a_role_is_set_by_its_name(tmp_path: Path) -> None:
    settings = {"role.ps.instances": "3", "role ps.memory": "2g", "role.ps.env.A": "b"}
    text = MINIMAL + "[role ps]\ninstances=1\nenv.B=file\n[role other]\n"
    application = read(tmp_path, text, Overrides(settings, {"B": "option"}))
    ps = application.spec.roles[0]
    assert (ps.instances, ps.resources.memory_mib, ps.env) == (3, 2048, ("B", "A")[1:])
    assert (application.env, application.role_env) == ({"B": "option"}, {"ps": {"A": "b"}})
    assert refused(text, Overrides({"role.psi.memory": "1g", "role.ps": "1", "role.ps.memroy": "1"})) == [
        "--set: role.psi.memory: there is no [role psi] in the file",
        "--set: role ps: has no section, write SECTION.KEY=VALUE, such as resources.memory=4g",
        "--set: role ps.memroy: is not known, the nearest is memory",
    ]


def test_file_errors_come_first_and_overridden_keys_have_none() -> None:
    text = MINIMAL + "[resources]\nmemory=x\nvcores=y\n"
    assert refused(text, Overrides({"resources.memory": "1g", "resources.gcores": "-1"})) == [
        "f:7: resources.vcores: 'y' is not a whole number",
        "--set: resources.gcores: is -1, the minimum is 0 (or auto)",
    ]


def test_the_world_is_checked_with_the_values_of_the_options(tmp_path: Path) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(tmp_path, MINIMAL, Overrides({"application.user_dev_workspace_path": "nowhere"}))
    assert refusal.value.problems == (
        f"--set: application.user_dev_workspace_path: {tmp_path}/nowhere: there is no such directory",
    )


def test_variables_of_options_are_exact_text_and_win(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("B=2\n")
    (tmp_path / "e").chmod(0o600)
    env = {"A": " 'x' \n", "B": "3", "C": "4"}
    application = read(tmp_path, MINIMAL + "env.A=1\nenv_file=e\nenv.D=5\n", Overrides(env=env))
    assert application.env == {**env, "D": "5"}
    assert set(application.spec.env) == {"A", "B", "C", "D"}


def test_a_variable_that_no_program_may_have_is_refused_without_its_value(tmp_path: Path) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(tmp_path, MINIMAL, Overrides(env={"NV_GPU": "hush", "A": "hush\0", "1A": "hush"}))
    assert refusal.value.problems == (
        "--env: NV_GPU: is set by dlapp and cannot be set here",
        "--env: A: has a NUL in it",
        "--env: 1A: '1A' is not the name of a variable",
    )


def test_pass_env_copies_values_of_the_submitters_environment(tmp_path: Path) -> None:
    text = MINIMAL + "pass_env=OMP_NUM_THREADS, HF_HOME\n  TOKEN\nenv.A=1\n"
    environ = {"OMP_NUM_THREADS": "4", "TOKEN": "of the shell", "OTHER": "x"}
    application = read(tmp_path, text, Overrides(env={"TOKEN": "of the option"}), environ)
    assert application.env == {"A": "1", "OMP_NUM_THREADS": "4", "TOKEN": "of the option"}
    assert application.notes == ("pass_env: HF_HOME is not set here, so the program does not get it",)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("NV_GPU", "NV_GPU: is set by dlapp and cannot be set here"),
        ("DLAPP_X", "DLAPP_X: is set by dlapp and cannot be set here"),
        ("LD_PRELOAD", "LD_PRELOAD: is set by dlapp and cannot be set here"),
        ("A=1", "A=1: 'A=1' is not the name of a variable"),
        ("", "is empty"),
        ("B", "B is set in the file too"),
        ("LARGE", "LARGE has 200000 bytes, the maximum is 130071"),
    ],
)
def test_a_name_that_cannot_be_passed_on_is_refused_with_its_line(tmp_path: Path, names: str, problem: str) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(tmp_path, MINIMAL + f"env.B=1\npass_env={names}\n", Overrides(), {"B": "2", "LARGE": "x" * 200_000})
    assert refusal.value.problems == (f"{tmp_path}/f:6: application.pass_env: {problem}",)


def test_values_of_variables_are_never_printed(tmp_path: Path) -> None:
    application = read(tmp_path, MINIMAL + "pass_env=TOKEN\n", Overrides(env={"KEY": "hush"}), {"TOKEN": "hush"})
    assert application.env == {"KEY": "hush", "TOKEN": "hush"}
    assert application.properties is not None
    shown = f"{application.spec} {application.properties.to_json()} {application.properties.to_text()}"
    assert "hush" not in shown
    assert "hush" not in repr(Overrides(env={"KEY": "hush"}))


def test_options_are_parsed_as_passed_by_the_shell() -> None:
    assert read_set_options(["a.b=1", "a.b=2=3", "c.d="]) == {"a.b": "2=3", "c.d": ""}
    assert read_env_options(["A=b=c", "B=", "C"], {"C": "d"}) == {"A": "b=c", "B": "", "C": "d"}
    for texts, message in (
        (["=hush"], "--env number 1 is not NAME=VALUE or NAME"),
        (["C"], "--env C: is not set here"),
    ):
        with pytest.raises(UsageError, match=message):
            read_env_options(texts, {})
    with pytest.raises(UsageError, match=r"--set 'a\.b' is not SECTION\.KEY=VALUE"):
        read_set_options(["a.b"])


def test_the_json_form_without_the_option_of_a_setting_is_read() -> None:
    data = parse_properties(MINIMAL, "f").to_json()
    for settings in data["sections"].values():
        for setting in settings.values():
            del setting["option"]
    assert Properties.from_json(data) == parse_properties(MINIMAL, "f")
