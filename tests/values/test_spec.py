"""The values that are submitted: checked when they are made, the same after a way through JSON."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import SpecError
from dlapp.value import replace
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import (
    RESERVED_ENV,
    RESERVED_ENV_PREFIXES,
    AppSpec,
    ContainerFailure,
    Dependency,
    Gang,
    InputSpec,
    OnFailure,
    OutputSpec,
    Placement,
    Resources,
    RoleFailure,
    RoleSpec,
    Secrets,
    Submission,
    Until,
    gangs_of,
    problems_between,
)

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
word = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
counts = st.integers(1, 1000)
seconds = st.floats(0.001, 1e9)
resources = st.builds(Resources, memory_mib=counts, vcores=counts, gcores=st.integers(0, 8))
placements = st.builds(
    Placement,
    nodes=st.lists(word).map(tuple),
    exclude_nodes=st.lists(word).map(tuple),
    node_label=st.none() | word,
    spread=st.booleans(),
)
roles = st.builds(
    RoleSpec,
    name=word,
    instances=counts,
    resources=resources,
    script=st.none() | word,
    args=st.none() | st.lists(text).map(tuple),
    docker_image=st.none() | word,
    placement=st.none() | placements,
    on_failure=st.none() | st.sampled_from((RoleFailure.RESTART, RoleFailure.FAIL)),
    retries=st.integers(0, 1000),
    service=st.booleans(),
)
inputs = st.builds(
    InputSpec,
    name=word,
    sources=st.lists(text, min_size=1).map(tuple),
    input_path=st.sampled_from(["data", ".", "a/b"]),
)
outputs = st.builds(
    OutputSpec,
    name=word,
    output_path=word,
    target=word.map("file:///{}".format),
    overwrite=st.booleans(),
    on_failure=st.sampled_from(OnFailure),
)
env_names = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in RESERVED_ENV and not name.startswith(RESERVED_ENV_PREFIXES)
)


def unique(values: st.SearchStrategy[object], *fields: str, least: int = 0) -> st.SearchStrategy[tuple[object, ...]]:
    by = tuple((lambda one, field=field: getattr(one, field)) for field in fields)
    return st.lists(values, unique_by=by, min_size=least, max_size=4).map(tuple)


def related(roles: tuple[Any, ...]) -> tuple[RoleSpec, ...]:
    """The first one decides, and each of the others depends on the one before it."""
    found = [replace(one, service=place > 0 and one.service) for place, one in enumerate(roles)]
    for place in range(1, len(found)):
        until = Until.STARTED if found[place - 1].service else Until.DONE
        found[place] = replace(found[place], depends_on=(Dependency(found[place - 1].name, until),))
    return tuple(found)


specs = st.builds(
    AppSpec,
    username=word,
    appname=text.filter(bool),
    workspace=text.filter(bool),
    script=word,
    args=st.lists(text).map(tuple),
    docker_image=st.none() | word,
    exclude=st.lists(text).map(tuple),
    queue=st.none() | word,
    priority=st.none() | counts,
    project=st.none() | text,
    tags=st.lists(word).map(tuple),
    max_runtime_s=st.none() | seconds,
    kill_grace_s=seconds,
    env=st.lists(env_names).map(tuple),
    placement=placements,
    inputs=unique(inputs, "name"),
    outputs=unique(outputs, "name", "target"),
    roles=unique(roles, "name", least=1).map(related),
    gang=st.sampled_from(Gang),
)
submissions = st.builds(
    Submission,
    spec=specs,
    workspace_archive=text,
    workspace_digest=text,
    submitter=word,
    submitted_ms=counts,
    log_limit_bytes=counts,
)
secret_values = st.builds(
    Secrets,
    control_secret=st.just("ab" * 32),
    env=st.dictionaries(env_names, text),
    role_env=st.dictionaries(word, st.dictionaries(env_names, text)),
    environment=st.dictionaries(env_names, text),
)


@given(submissions)
def test_a_submission_is_the_same_after_a_way_through_json(submission: Submission) -> None:
    assert from_json(Submission, json.loads(json.dumps(to_json(submission))), strict=True) == submission


@given(secret_values)
def test_secrets_are_the_same_after_a_way_through_json(secrets: Secrets) -> None:
    assert from_json(Secrets, json.loads(json.dumps(to_json(secrets))), strict=True) == secrets


@given(specs)
def test_every_index_belongs_to_one_instance_of_one_role(spec: AppSpec) -> None:
    if spec.containers > 2000:
        spec = AppSpec(username="u", appname="a", workspace="/w", script="s", roles=spec.roles[:1])
    places = [(role.name, place) for role, place in map(spec.role_of, range(spec.containers))]
    assert places == [(role.name, place) for role in spec.roles for place in range(role.instances)]
    with pytest.raises(IndexError):
        spec.role_of(spec.containers)


def spec_with(**fields: object) -> AppSpec:
    return AppSpec(**{"username": "u", "appname": "a", "workspace": "/w", "script": "s", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"username": ""}, "application.username: is empty"),
        ({"script": "../s"}, "application.user_shell_script: '../s' leads out of the workspace"),
        ({"script": "a/../../s"}, "application.user_shell_script: 'a/../../s' leads out of the workspace"),
        ({"script": "/s"}, "application.user_shell_script: '/s' is absolute; it is taken from the workspace's root"),
        ({"args": ("a\0b",)}, "application.user_shell_args: has a NUL in it"),
        ({"tags": ("a", "b,c")}, "application.tags: 'b,c' is not a tag: it is empty, or has a comma or line end in it"),
        ({"env": ("DLAPP_X",)}, "application.env.DLAPP_X: is set by dlapp and cannot be set here"),
        (
            {"env": ("NVIDIA_IMEX_CHANNELS",)},
            "application.env.NVIDIA_IMEX_CHANNELS: is set by dlapp and cannot be set here",
        ),
        ({"env": ("A-B",)}, "application.env.A-B: 'A-B' is not the name of a variable"),
        ({"max_runtime_s": 0.0}, "application.max_runtime: is 0 s, it must be above 0"),
        ({"args": (1,)}, "args[0]: is 1, it must be text (str)"),
        ({"args": "-n 1"}, "args: is '-n 1', it must be a tuple of texts"),
        ({"script": None, "appname": 3}, "appname: is 3, it must be text (str)"),
        ({"max_runtime_s": "1h"}, "max_runtime_s: is '1h', it must be a number of seconds"),
        ({"kill_grace_s": -1.0}, "application.kill_grace: is -1 s, the minimum is 0"),
        ({"roles": ()}, "roles: is empty"),
        ({"roles": (RoleSpec(), RoleSpec())}, "role: 'worker' appears twice"),
    ],
)
def test_a_spec_that_is_not_possible_is_never_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_with(**fields)
    assert str(refused.value) == message


def test_two_outputs_never_have_one_target() -> None:
    outputs = tuple(OutputSpec(name=n, output_path=n, target=f"file:///t{'/' * (n == 'b')}") for n in "ab")
    with pytest.raises(SpecError, match="'file:///t' appears twice"):
        spec_with(outputs=outputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": 1}, "more: is not known"),
        ({"username": 3}, "username: is the number 3, not str"),
        ({"priority": True}, "priority: is true or false, not int"),
        (
            {"on_container_failure": "continue", "gang": "all", "roles": [{"name": "a"}]},
            "application.on_container_failure: is continue, but the containers of a only work together",
        ),
        ({"gang": "some"}, "gang: is 'some', allowed are all, role, none"),
        ({"roles": [{"resources": {"memory": 1}}]}, r"roles\[0\].resources.memory: is not known"),
        ({"inputs": [{"sources": []}]}, r"inputs\[0\].input_path: is missing"),
        ({"args": "a b"}, "args: is text, not an array"),
    ],
)
def test_a_wrong_json_form_is_refused_with_the_path_of_the_field(change: dict[str, object], message: str) -> None:
    data = {**to_json(spec_with()), **change}
    with pytest.raises(SpecError, match=message):
        from_json(AppSpec, data, strict=True)


def test_a_field_of_a_newer_version_is_passed_over_where_it_may_be() -> None:
    data = {**to_json(spec_with()), "newer": {"a": 1}}
    assert from_json(AppSpec, data) == spec_with()


# ---- what is wrong between roles ----


def role(name: str, *depends_on: str, **fields: object) -> RoleSpec:
    found = (dependency.partition(":") for dependency in depends_on)
    conditions = tuple(Dependency(other, Until(until or "started")) for other, _, until in found)
    return RoleSpec(name=name, depends_on=conditions, **fields)  # type: ignore[arg-type]


def problems(*roles: RoleSpec, gang: Gang = Gang.ALL, success: tuple[str, ...] = (), **fields: object) -> list[str]:
    failure = fields.get("failure", ContainerFailure.STOP)
    found = problems_between(roles, gang=gang, success=success, failure=failure)  # type: ignore[arg-type]
    return [f"{where}: {problem}" for where, problem in found]


def test_all_that_is_wrong_between_roles_is_named_at_once() -> None:
    many = Resources(memory_mib=2**31 - 1)
    assert problems(
        role("a", "b", "nobody"),
        role("b", "c:done", instances=60_000, on_failure=RoleFailure.RESTART_GANG),
        role("c", "a", instances=60_000, resources=many),
        role("board", service=True),
        role("report", "board:done"),
        gang=Gang.NONE,
        success=("board", "bee", "c"),
    ) == [
        "role: all roles together have 120003 instances, the maximum is 100000",
        f"role: all instances together ask for {60_000 * (2**31 - 1) + 60_003 * 4096} MiB memory, the maximum is "
        "2147483647 MiB",
        "role a.depends_on: there is no role nobody, the nearest is board",
        "role report.depends_on: role board is a service, which is ended with the others and never done before",
        "role a.depends_on: the roles wait for each other: a -> b -> c -> a",
        "application.success: role board is a service, which does not decide",
        "application.success: there is no role bee, the nearest is b",
        "role b.on_failure: is restart_gang, and with gang=none there is no gang",
    ]


def test_an_application_of_services_only_is_refused() -> None:
    assert problems(role("a", service=True)) == ["application.success: every role is a service, so none decides"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_a_cycle_is_named_exactly_where_there_is_one(edges: list[tuple[int, int]]) -> None:
    names = [f"r{n}" for n in range(8)]
    roles = [role(name, *(f"r{to}" for of, to in edges if of == n)) for n, name in enumerate(names)]
    named = [line.partition("each other: ")[2].split(" -> ") for line in problems(*roles)]
    after = {n: {to for of, to in edges if of == n} for n in range(8)}
    for cycle in named:
        assert cycle[0] == cycle[-1] == min(cycle)
        assert all(int(b[1:]) in after[int(a[1:])] for a, b in pairwise(cycle))
    inside = [name for cycle in named for name in cycle[1:]]
    assert len(inside) == len(set(inside)), "no role is named in two"
    left = set(range(8))  # without those that wait for nothing that is left, again and again, only cycles remain
    while ready := {n for n in left if not after[n] & left}:
        left -= ready
    assert bool(named) is bool(left)


def test_a_role_that_waits_for_others_to_be_done_is_not_in_their_gang() -> None:
    roles = (role("a"), role("b", "a"), role("eval", "a:done"), role("after", "eval"), role("ps", service=True))
    names = {gang: [[item.name for item in team] for team in gangs_of(roles, gang)] for gang in Gang}
    assert names[Gang.ALL] == [["a", "b", "ps"], ["eval"], ["after"]]
    assert names[Gang.ROLE] == [["a"], ["b"], ["eval"], ["after"], ["ps"]]
    assert names[Gang.NONE] == []


def test_arguments_belong_to_the_program_beside_them() -> None:
    roles = (
        RoleSpec(name="a"),
        RoleSpec(name="b", args=("2",)),
        RoleSpec(name="c", script="c.sh"),
        RoleSpec(name="d", command=("d", "-x"), args=("3",)),
    )
    spec = spec_with(args=("1",), roles=roles)
    programs = [spec.program_of(role) for role in roles]
    assert [(program.script, program.command, program.args) for program in programs] == [
        ("s", (), ("1",)),
        ("s", (), ("2",)),
        ("c.sh", (), ()),
        ("", ("d", "-x"), ("3",)),
    ]
    bare = AppSpec(username="u", appname="a", command=("nvidia-smi",), args=("-L",))
    assert bare.program_of(bare.roles[0]).command == ("nvidia-smi",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"script": "a", "command": ("b",)}, "role worker.command: is given, and so is script; a role has one of them"),
        ({"command": ()}, "role worker.command: is empty"),
        ({"script": "../a"}, "role worker.script: '../a' leads out of the workspace"),
        ({"env": ("NV_GPU",)}, "role worker.env.NV_GPU: is set by dlapp and cannot be set here"),
        ({"instances": 0}, "role worker.instances: is 0, the minimum is 1"),
        ({"name": "A"}, "roles: 'A' is not a name: small letters, digits, '-' and '_', 31 at most"),
    ],
)
def test_a_role_that_is_not_possible_is_never_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        RoleSpec(**fields)  # type: ignore[arg-type]
    assert str(refused.value) == message
