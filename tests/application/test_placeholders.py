"""Test which placeholders are refused before a submission, and which names in braces are noted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dlapp.application.build import Keywords
from dlapp.application.description import Source, UnresolvedSpec, describe
from dlapp.application.notes import submission_notes
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.values.spec import AppSpec, RoleSpec
from tests.services.missing import missing

ENGINE = EngineInfo(name="local", version="1", has_gpus=True)
ALONE = "[application]\nappname=a\ncommand=prog\n"
IN_VARIABLES = (
    ": in variables only {app_id} and {cache.NAME} are replaced; other names in braces are passed on as they are"
)
TENSORFLOW = "[application]\nappname=a\nframework=tensorflow\n"


def described(
    place: Path, source: Source, overrides: Overrides = NO_OVERRIDES, environ: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the errors of an application, and its notes; a text is the content of its file."""
    if isinstance(source, str):
        (place / "f").write_text(source)
        source = str(place / "f")
    config = load_config({}, {"HOME": str(place)}, system_file=missing())
    found = describe(source, config, ENGINE, overrides, environ or {})
    try:
        found.problems.refuse()
    except DlappError as error:
        return [text.replace(f"{place}/f:", "") for text in getattr(error, "problems", [str(error)])], []
    assert found.application is not None
    return [], submission_notes(found.application, config, environ or {})


def refused(place: Path, source: Source) -> list[str]:
    problems, _ = described(place, source)
    return problems


def noted(place: Path, source: Source, environ: Mapping[str, str] | None = None) -> list[str]:
    problems, notes = described(place, source, environ=environ)
    assert problems == []
    return notes


# ---- addresses ----


@pytest.mark.parametrize(
    "text",
    [
        f"{TENSORFLOW}[role ps]\ncommand=p {{hosts:ps}} {{hosts:worker}}\n"
        "[role worker]\ninstances=2\ncommand=p {hosts:ps} {master}\n",
        f"{ALONE}user_shell_args={{hosts:worker}} {{master}}\nframework=pytorch\n[resources]\ncontainers=3\n",
        f"{ALONE}user_shell_args={{master}}\nframework=torchrun\n",
        "[application]\nappname=a\n[role a]\nports=1\ninstances=2\ncommand=p\n[role b]\ncommand=p {hosts:a}\n",
        "[application]\nappname=a\ngang=none\n[role a]\nports=1\ninstances=2\ncommand=p\n"
        "[role b]\ncommand=p {hosts:a}\ndepends_on=a\n",
        "[application]\nappname=a\ngang=none\n[role a]\nports=1\ncommand=p {hosts:a} {master}\n",
        "[application]\nappname=a\ngang=none\n[role a]\nports=1\ncommand=p\n[role b]\ncommand=p\ndepends_on=a\n"
        "[role c]\ncommand=p {hosts:a}\ndepends_on=b:ready\n",
        "[application]\nappname=a\ngang=role\n[role a]\nports=1\ninstances=2\ncommand=p {hosts:a}\n",
        f"{ALONE}user_shell_args={{hosts:store}}\n[role worker]\ndepends_on=store:ready\n[service store]\ncommand=s\n",
    ],
)
def test_addresses_that_are_known_at_the_start_are_accepted(place: Path, text: str) -> None:
    assert refused(place, text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{ALONE}user_shell_args=--hosts={{hosts:worker}}\n",
            "4: application.user_shell_args: {hosts:worker}: the containers of role worker have no ports; set "
            "framework, or ports in [role worker]",
        ),
        (
            f"{ALONE}user_shell_args={{master}}\n[resources]\ncontainers=2\n",
            "4: application.user_shell_args: {master}: the containers of role worker have no ports; set framework, or "
            "ports in [role worker]",
        ),
        (
            f"{TENSORFLOW}[role ps]\ncommand=p {{hosts:wroker}}\n[role worker]\ncommand=p\n",
            "5: role ps.command: {hosts:wroker}: there is no role wroker, the nearest is worker",
        ),
        (
            "[application]\nappname=a\n[role a]\ncommand=p\n[role b]\ncommand=p\nargs=-x {hosts:a}\n",
            "7: role b.args: {hosts:a}: the containers of role a have no ports; set framework, or ports in [role a]",
        ),
        (
            "[application]\nappname=a\ngang=none\n[role a]\nports=1\ncommand=p\n[role b]\ncommand=p {hosts:a}\n",
            "8: role b.command: {hosts:a}: the addresses of role a are not known when role b starts; set gang=all, or "
            "depends_on=a",
        ),
        (
            "[application]\nappname=a\ngang=none\n[role a]\nports=1\ninstances=2\ncommand=p {hosts:a}\n",
            "7: role a.command: {hosts:a}: the addresses of role a are not known when role a starts; set gang=all",
        ),
        (
            "[application]\nappname=a\ngang=role\n[role a]\nports=1\ncommand=p\n[role b]\ncommand=p {master}\n",
            "8: role b.command: {master}: the addresses of role a are not known when role b starts; set gang=all, or "
            "depends_on=a",
        ),
        (
            "[application]\nappname=a\n[role a]\nports=1\ncommand=p {hosts:b}\n[role b]\nports=1\ncommand=p\n"
            "depends_on=a:done\nsuccess=a\n".replace("success=a\n", ""),
            "5: role a.command: {hosts:b}: the addresses of role b are not known when role a starts; set gang=all, or "
            "depends_on=b",
        ),
        (
            f"{ALONE}framework=pytorch\nuser_shell_args={{hosts:worker}}\n[resources]\ncontainers=3000\n",
            "5: application.user_shell_args: {hosts:worker}: role worker has 3000 containers, whose addresses are too "
            "long for an argument; read the file in DLAPP_ROSTER",
        ),
        (
            "[application]\nappname=a\nkind=service\n[service a]\ncommand=p {master}\n",
            "5: service a.command: {master}: no role decides the end of the application",
        ),
        (
            f"{ALONE}cache.models=/m\nuser_shell_args={{cache.model}} {{cache.models}}\n",
            "5: application.user_shell_args: {cache.model}: there is no cache.model in [application], the nearest is "
            "cache.models",
        ),
        (
            f"{ALONE}env.HF_HOME={{cache.model}}/secret\ncache.models=/m\n",
            "4: application.env.HF_HOME: {cache.NAME} is not a cache of [application]; there is cache.models",
        ),
        (
            "[application]\nappname=a\n[role a]\ncommand=p\nenv.X={cache.x}\n",
            "5: role a.env.X: {cache.NAME} is not a cache of [application]; there is none",
        ),
    ],
)
def test_placeholders_that_cannot_be_resolved_are_refused(place: Path, text: str, problem: str) -> None:
    assert refused(place, text) == [problem]


def test_an_error_of_a_role_does_not_look_like_one_of_its_addresses(place: Path) -> None:
    text = "[application]\nappname=a\n[role a]\nports=none\ncommand=p\n[role b]\ncommand=p {hosts:a} {master}\n"
    (problem,) = refused(place, text)
    assert problem.startswith("4: role a.ports: ")
    (problem,) = refused(place, f"{ALONE}cache.m=m\nuser_shell_args={{cache.m}}\n")
    assert problem.startswith("4: application.cache.m: ")


def test_a_spec_and_keywords_are_refused_like_a_file(place: Path) -> None:
    roles = (RoleSpec(name="a", command=("p", "{hosts:b}")),)
    spec = AppSpec(username="u", appname="a", roles=roles)
    assert "{hosts:b}: there is no role b" in refused(place, UnresolvedSpec(spec, {}))[0]
    assert "{cache.x}: there is no cache.x" in refused(place, Keywords({"command": ["p"]}, {}, ("{cache.x}",)))[0]
    (problem,) = refused(
        place, UnresolvedSpec(AppSpec(username="u", appname="a", command=("p",), env=("X",)), {"X": "{cache.y}"})
    )
    assert problem.endswith("application.env.X: {cache.NAME} is not a cache of [application]; there is none")


# ---- notes ----


@pytest.mark.parametrize(
    ("args", "note"),
    [
        ("--seed={indx}", "{indx} is not replaced, the nearest is index"),
        ("--out=run-{role_indx}.txt", "{role_indx} is not replaced, the nearest is role_index"),
        ("{Role}", "{Role} is not replaced, the nearest is role"),
        ("--rank={rank}", "{rank} is not replaced, the nearest is role_index"),
        ("--world={world_size}", "{world_size} is not replaced, the nearest is role_size"),
        ("--task={task_index}", "{task_index} is not replaced, the nearest is role_index"),
        ("--job {job_name}", "{job_name} is not replaced, the nearest is role"),
        ("--name={id}", "{id} is not replaced, the nearest is app_id"),
        ("runs/{run}/log", "{run} is not replaced, the nearest is app_id"),
        ("--job={SLURM_JOB_ID}", "{SLURM_JOB_ID} is not replaced, the nearest is app_id"),
        ("--w={worker_hosts}", "{worker_hosts} is not replaced, the nearest is hosts:worker"),
        ("--w={hosts-worker}", "{hosts-worker} is not replaced, the nearest is hosts:worker"),
        ("--m={master_addr}", "{master_addr} is not replaced, the nearest is master"),
        ("--c={cache}", "{cache} is not replaced, the nearest is cache.models"),
        ("--c={cache:models}", "{cache:models} is not replaced, the nearest is cache.models"),
        ("{foo}", "{foo} is not replaced, known are index, role, "),
        ("--seed={trial}", "{trial} is not replaced: there is no [sweep]"),
        ("--port={port}", "{port} is not replaced: the containers have no ports"),
        ('--seed="{indx}"', "{indx} is not replaced, the nearest is index"),
    ],
)
def test_an_unknown_name_is_noted_with_the_right_one(place: Path, args: str, note: str) -> None:
    (found,) = noted(place, f"{ALONE}cache.models=/m\ndocker_image=i\nuser_shell_args={args}\n")
    assert found.startswith(f"user_shell_args: {note}")


@pytest.mark.parametrize(
    "args",
    [
        """--config '{"a": 1}'""",
        """--config {\\"a\\":1}""",
        "--fmt {:.2f} {} {0} {1:>4}",
        "--filename={epoch:02d}-{val_loss:.2f}",
        "--filename={epoch}-{step}.ckpt",
        "--fmt '{asctime} {message}'",
        '--fmt "{asctime} {level} {message}"',
        "--seed '{indx}'",
        "{index} {app_id} {role}{role_index}/{role_size}",
        "--a={a,b} {1..3}",
        "--t={{indx}}",
        "--p={person!r}",
    ],
)
def test_formats_and_json_are_not_noted(place: Path, args: str) -> None:
    assert noted(place, f"{ALONE}user_shell_args={args}\n") == []


@pytest.mark.parametrize(
    "command",
    [
        "awk '{print}' f",
        'awk "{print}" f',
        "awk '{print $1}' f",
        "sh -c 'for i in 1 2; do echo ${i} ${index}; done'",
        "bash -c 'f() { echo {a,b}; }; f'",
        "find . -exec rm {} ;x",
        "xargs -I{item} echo {item}",
        "jq '{rank}' f",
        "python3 -c 'print(f\"{rank}\")'",
    ],
)
def test_braces_of_other_programs_are_not_noted(place: Path, command: str) -> None:
    assert not any("not replaced, " in item for item in noted(place, f"[application]\nappname=a\ncommand={command}\n"))


def test_words_of_python_are_noted_like_those_of_a_file(place: Path) -> None:
    keywords = Keywords(
        {"command": ["p", "{indx}"]}, {"A": "{role}"}, ("--x={rank}", "{asctime} {message}", "{idx} {i}")
    )
    assert noted(place, keywords) == [
        "command: {indx} is not replaced, the nearest is index",
        "args: {rank} is not replaced, the nearest is role_index",
        f"env.A{IN_VARIABLES}",
    ]


@pytest.mark.parametrize("value", ["{role}", "{cache}/hub", "x/{id}", "{rank}", "{cache_models}", "{index}-{trial}"])
def test_a_variable_with_another_placeholder_is_noted_without_its_value(place: Path, value: str) -> None:
    text = f"{ALONE}docker_image=i\ncache.models=/m\nenv.A={value}\n[sweep]\ngrid.lr=1\n"
    assert noted(place, text) == [f"env.A{IN_VARIABLES}"]


@pytest.mark.parametrize(
    "value",
    ["{app_id}", "{cache.models}/x", "{role}: {content}", '{"a": 1}', "{message}", "p{Foo}q", "{}", "{0}", "a{id}b"],
)
def test_a_variable_with_other_braces_is_not_noted(place: Path, value: str) -> None:
    assert noted(place, f"{ALONE}docker_image=i\ncache.models=/m\nenv.A={value}\n") == []
    passed = f"{ALONE}pass_env=A\n"
    assert noted(place, passed, {"A": "{role}"}) == []


@pytest.mark.parametrize(("name", "is_noted"), [("id", True), ("index", True), ("date", True), ("app_id", False)])
def test_in_a_target_only_the_id_of_the_application_is_replaced(place: Path, name: str, is_noted: bool) -> None:
    text = f"{ALONE}[to_hdfs]\noutput_path=o\nhdfs=results/{{{name}}}\n[checkpoint]\npath=c\nhdfs=c/{{{name}}}\n"
    note = f"to_hdfs.hdfs, checkpoint.hdfs: {{{name}}} is not replaced, in a target only {{app_id}} is"
    assert noted(place, text) == ([note] if is_noted else [])


def test_a_directory_with_braces_above_the_file_is_not_noted(place: Path) -> None:
    inner = place / "{id}"
    inner.mkdir()
    assert noted(inner, f"{ALONE}[to_hdfs]\noutput_path=o\nhdfs=results/{{app_id}}\n") == []


def test_in_a_sweep_each_name_is_taken_for_a_parameter(place: Path) -> None:
    sweep = "[sweep]\ngrid.lr=1, 2\ngrid.role=a, b\n"
    text = f"{ALONE}user_shell_args=--lr={{lr}} {{role}} --out={{trial}}-{{epoch}} --n={{ll}}\n{sweep}"
    first, second = noted(place, text)
    assert first.startswith("user_shell_args: {epoch} is not replaced, known are lr, role, trial, ")
    assert second == "user_shell_args: {ll} is not replaced, the nearest is lr"


# ---- variables of the submitter ----

SHELL = {
    "HF_TOKEN": "hf_secret",
    "WANDB_API_KEY": "w_secret",
    "PYTHONPATH": "/p",
    "https_proxy": "http://user:p_secret@proxy:1",
    "http_proxy": "http://localhost:1",
    "SSL_CERT_FILE": "/ca.pem",
    "MLFLOW_TRACKING_URI": "",
    "EDITOR": "vi",
}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", "HF_TOKEN, PYTHONPATH, WANDB_API_KEY"),
        ("pass_env=HF_TOKEN\nenv.PYTHONPATH=\n", "WANDB_API_KEY"),
        ("docker_image=i\n", "HF_TOKEN, PYTHONPATH, SSL_CERT_FILE, WANDB_API_KEY, http_proxy"),
        ("docker_image=i\nnetwork=host\npass_env=SSL_CERT_FILE\n", "HF_TOKEN, PYTHONPATH, WANDB_API_KEY"),
    ],
)
def test_well_known_variables_that_are_not_passed_are_named_once(place: Path, more: str, names: str) -> None:
    assert noted(place, f"{ALONE}{more}", SHELL) == [f"not passed: {names} (pass_env)"]


def test_a_shell_without_well_known_variables_is_not_noted(place: Path) -> None:
    assert noted(place, ALONE, {"EDITOR": "vi", "https_proxy": "http://p:1", "HF_TOKEN": ""}) == []
    assert noted(place, ALONE, {"HF_TOKEN": "x", "DLAPP_CONTAINER_ID": "c"}) == []


def test_on_a_cluster_proxies_are_named_too(place: Path) -> None:
    (place / "f").write_text(ALONE)
    config = load_config({"cluster": "yarn"}, {"HOME": str(place)}, system_file=missing())
    found = describe(str(place / "f"), config, ENGINE, NO_OVERRIDES, SHELL)
    assert found.application is not None
    assert submission_notes(found.application, config, SHELL) == [
        "not passed: HF_TOKEN, PYTHONPATH, SSL_CERT_FILE, WANDB_API_KEY, http_proxy, https_proxy (pass_env)"
    ]
