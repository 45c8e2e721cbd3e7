"""One description gives one spec: as a file, as options of a command, as keywords of Python and as what is recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dlapp.application.build import Keywords
from dlapp.application.description import RecordedFile, ResolvedApplication, Source, describe
from dlapp.application.keys import GRID, LINK, NAME, OF_ROLES, RANDOM, SECTIONS, PropertyKey, key_of
from dlapp.application.keywords import KEYWORDS, MAPPINGS
from dlapp.application.overrides import Overrides
from dlapp.application.properties import Properties, Setting
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.errors import UsageError
from dlapp.value import replace
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec
from tests.tiers import some

ENGINE = EngineInfo(name="local", version="1", has_gpus=True)
NAMES = ("a", "train", "b_2")
WORDS = {
    "user_dev_workspace_path": ["w"],
    "user_shell_script": ["s.sh"],
    "script": ["s.sh"],
    "username": ["tony"],
    "framework": ["none", "pytorch", "tensorflow"],
    "view_acl": ["ann,ben team"],
    "modify_acl": ["ann"],
    "idle_guard": ["off", "5%, 30m, stop"],
    "notify": ["failed, done", "none"],
    "after": ["application_1_0001:any", "application_1_0002"],
    "network": ["host"],
    "docker_image": ["debian:12", "reg:5000/a/b"],
    "nodes": ["n1, n2"],
    "exclude_nodes": ["n3"],
    "node_label": ["fast"],
    "queue": ["default"],
    "success": ["all", "a", "train"],
    "depends_on": ["a", "train:done", "b_2:ready"],
    "role": ["all", "a"],
    "ready": ["port", "report", "http:/health"],
    "sampler": ["random", "grid"],
    "metric": ["loss"],
    "asha": ["1, 3: 3"],
    "hdfs": ["data", "/d", "file:///e"],
    "input_path": ["in", "x/y"],
    "output_path": ["out", "logs"],
    "path": ["model"],
    "tensorboard": ["true", "false", "events"],
    f"{LINK}{NAME}": ["a:port/x", "train:8080"],
    f"cache.{NAME}": ["/models", "/pip"],
    f"env.{NAME}": ["1", "a b"],
    f"{GRID}{NAME}": ["0.1, 0.2", "x, y, z"],
    f"{RANDOM}{NAME}": ["uniform(0, 1)", "choice(a, b)"],
}
UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
UNUSED = ("env_file", "pass_env", "list", "pruner")
"""Keys that name files, variables or packages of this machine."""


def values(name: str, key: PropertyKey) -> st.SearchStrategy[str]:
    """Return texts of a key that are often valid."""
    if name in WORDS:
        return st.sampled_from(WORDS[name])
    form = key.form
    if form.allowed:
        return st.sampled_from(form.allowed)
    by_form = {
        "boolean": st.sampled_from(["true", "false", "yes", "0"]),
        "count": st.integers(0, 5).map(str),
        "count or auto": st.sampled_from(["auto", "0", "2"]),
        "memory": st.sampled_from(["512m", "4g", "1000"]),
        "size": st.sampled_from(["64m", "1g"]),
        "duration": st.sampled_from(["90s", "10m", "1h30m", "5"]),
        "words": st.sampled_from(["a -b 'c d'", "python3 train.py --lr {lr}"]),
    }
    return by_form.get(form.what, st.sampled_from(["x", "y z", "ü"]))


@st.composite
def files(draw: st.DrawFn) -> dict[str, dict[str, str]]:
    """Return section -> key -> text, with a program, and with any keys beside it."""
    made: dict[str, dict[str, str]] = {"application": {"appname": "a"}}
    if draw(st.booleans()):
        made["application"] |= {"user_dev_workspace_path": "w", "user_shell_script": "s.sh"}
    else:
        made["application"]["command"] = "prog -x"
    sections = {"application": 6, "resources": 4, "checkpoint": 3, "sweep": 4}
    wanted = ["application", *draw(st.sets(st.sampled_from(list(sections))))]
    for kind in ("role", "service", "from_hdfs", "to_hdfs"):
        if draw(st.integers(0, 2)) == 0:
            wanted += [f"{kind} {name}" for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))]
    for section in dict.fromkeys(wanted):
        kind = section.partition(" ")[0]
        keys = {name: key for name, key in SECTIONS[kind].items() if key.is_built and name not in UNUSED}
        required = [name for name, key in keys.items() if key.required]
        chosen = draw(st.sets(st.sampled_from(sorted(keys)), max_size=sections.get(kind, 4)))
        settings_ = made.setdefault(section, {})
        for name in (*required, *sorted(chosen)):
            own = f"{name.removesuffix(NAME)}{draw(st.sampled_from('ABC'))}" if name.endswith(f".{NAME}") else name
            if own not in settings_ and not (name in ("user_shell_script", "command") and kind == "application"):
                settings_[own] = draw(values(name, keys[name]))
    return made


def file_of(made: dict[str, dict[str, str]]) -> bytes:
    sections = {name: {key: Setting(text) for key, text in keys.items()} for name, keys in made.items()}
    return Properties(path="f", sections=sections).to_text().encode()


def resolve(source: Source, config: Config, overrides: Overrides | None = None) -> ResolvedApplication | None:
    """Return the application; None: it is refused."""
    try:
        description = describe(source, config, ENGINE, overrides or Overrides(), {})
        description.problems.refuse()
    except UsageError:
        return None
    assert description.application is not None
    return description.application


def keywords_of(made: dict[str, dict[str, str]]) -> Keywords:
    """Return the same as keywords: booleans and arguments as objects, all else as text."""

    def value(section: str, name: str, text: str) -> Any:
        key = key_of(section, name)
        assert key is not None
        return key.read(text) if not key.form.takes_text else text

    def nested(section: str) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, text in made[section].items():
            prefix, dot, own = name.partition(".")
            if dot and f"{prefix}.{NAME}" in SECTIONS[section.partition(" ")[0]]:
                named.setdefault(prefix, {})[own] = value(section, name, text)
            else:
                named[name] = value(section, name, text)
        return named

    by_place = {place: keyword for keyword, place in KEYWORDS.items()}
    fields: dict[str, Any] = {}
    env: dict[str, str] = {}
    args: tuple[str, ...] = ()
    for section in ("application", "resources"):
        for name, text in made.get(section, {}).items():
            prefix, dot, own = name.partition(".")
            if name == "user_shell_args":
                args = SECTIONS[section][name].read(text)
            elif dot and prefix == "env":
                env[own] = text
            elif dot:
                keyword = next(keyword for keyword, one in MAPPINGS.items() if one == f"{prefix}.")
                fields.setdefault(keyword, {})[own] = text
            else:
                fields[by_place[section, name]] = value(section, name, text)
    for section in made:
        kind, _, own = section.partition(" ")
        if kind in OF_ROLES:
            fields.setdefault(f"{kind}s", {})[own] = nested(section)
        elif kind in ("checkpoint", "sweep"):
            fields[kind] = nested(section)
        elif kind in ("from_hdfs", "to_hdfs"):
            keyword, path = ("inputs", "input_path") if kind == "from_hdfs" else ("outputs", "output_path")
            settings_ = nested(section)
            fields.setdefault(keyword, {})[settings_.pop(path)] = settings_
    return Keywords(fields, env, args)


def unnamed(spec: AppSpec) -> AppSpec:
    """Return a spec without the names of inputs and outputs, which keywords take from their paths."""
    names = list(map(str, range(100)))
    return replace(
        spec,
        inputs=tuple(replace(one, name=name) for one, name in zip(spec.inputs, names, strict=False)),
        outputs=tuple(replace(one, name=name) for one, name in zip(spec.outputs, names, strict=False)),
    )


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the file, as the working directory."""
    monkeypatch.chdir(place)
    return place


@settings(
    max_examples=some(100),
    deadline=None,
    suppress_health_check=UNCHECKED,
)
@given(files())
def test_a_file_options_and_its_record_give_one_spec(inside: Path, config: Config, made: dict[str, Any]) -> None:
    path = inside / "app.properties"
    path.write_bytes(file_of(made))
    by_file = resolve(str(path), config)
    base: dict[str, dict[str, str]] = {**{section: {} for section in made}, "application": {"appname": "other"}}
    path.write_bytes(file_of(base))
    named = {section.replace(" ", "."): keys for section, keys in made.items() if section.partition(" ")[0] in OF_ROLES}
    plain = {section: keys for section, keys in made.items() if section.partition(" ")[0] not in OF_ROLES}
    set_ = {f"{section}.{key}": text for section, keys in (plain | named).items() for key, text in keys.items()}
    by_options = resolve(str(path), config, Overrides(set_))
    assert (by_file is None) is (by_options is None)
    if by_file is None or by_options is None:
        return
    assert (by_options.spec, by_options.env, by_options.role_env) == (by_file.spec, by_file.env, by_file.role_env)
    assert from_json(AppSpec, json.loads(json.dumps(to_json(by_file.spec))), strict=True) == by_file.spec
    assert by_file.properties is not None
    again = Properties.from_json(json.loads(json.dumps(by_file.properties.to_json())))
    assert again == by_file.properties
    record = RecordedFile(str(path), by_file.properties.to_record().encode())
    names = {name: by_file.env[name] for name in by_file.spec.env}
    recorded = resolve(record, config, Overrides(env=names))
    assert recorded is not None
    if not any(by_file.role_env.values()):  # the values of variables are not recorded
        assert recorded.spec == by_file.spec


@settings(
    max_examples=some(100),
    deadline=None,
    suppress_health_check=UNCHECKED,
)
@given(files())
def test_a_file_and_keywords_give_one_spec(inside: Path, config: Config, made: dict[str, Any]) -> None:
    path = inside / "app.properties"
    path.write_bytes(file_of(made))
    paths = [keys[value] for keys in made.values() for value in ("input_path", "output_path") if value in keys]
    assume(len(paths) == len(set(paths)))  # they are the names of the sections
    by_file, by_keywords = resolve(str(path), config), resolve(keywords_of(made), config)
    assert (by_file is None) is (by_keywords is None)
    if by_file is not None and by_keywords is not None:
        assert unnamed(by_keywords.spec) == unnamed(by_file.spec)
        assert (by_keywords.env, by_keywords.role_env) == (by_file.env, by_file.role_env)


def test_the_files_of_an_application_are_keywords_by_their_keys(inside: Path, config: Config) -> None:
    text = (
        "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\n"
        "[from_hdfs in]\nhdfs=data/*\n  more\ninput_path=in\nmode=feed\nfeed.format=lines\nfeed.epochs=3\n"
        "[from_hdfs x]\nhdfs=d\ninput_path=x\n"
        "[to_hdfs]\noutput_path=out\nhdfs=results\noverwrite=true\nkeep_previous=2\n"
    )
    (inside / "app.properties").write_text(text)
    feed = {"feed.format": "lines", "feed.epochs": 3}
    fields = {
        "workspace": Path("w"),
        "script": "s.sh",
        "appname": "a",
        "inputs": {"in": {"hdfs": ["data/*", "more"], "mode": "feed", **feed}, "x": "d"},
        "outputs": {"out": {"hdfs": Path("results"), "keep_previous": 2}},
        "overwrite": True,
    }
    by_file, by_keywords = resolve(str(inside / "app.properties"), config), resolve(Keywords(fields), config)
    assert by_file is not None
    assert by_keywords is not None
    assert by_keywords.spec == by_file.spec
    assert os.path.isabs(by_keywords.spec.workspace)
