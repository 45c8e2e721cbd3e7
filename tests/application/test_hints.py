"""Test the hints on unknown keys and sections: names of other programs, other spellings, and the list of all names."""

from __future__ import annotations

import pytest

from dlapp.application.build import Keywords
from dlapp.application.hints import OTHER_PROGRAMS, TARGETS, folded, nearest_key
from dlapp.application.keys import SECTIONS, key_of
from dlapp.application.keywords import values_of
from dlapp.application.overrides import Overrides
from dlapp.application.properties import Problems, read_properties
from dlapp.errors import DlappError, FileRefused

MINIMAL = "[application]\nappname=a\ncommand=true\n"
ROWS = [
    (program, target, name)
    for program, of in OTHER_PROGRAMS.items()
    for target, names in of.items()
    for name in names.split()
]


def refused(text: str, overrides: Overrides | None = None) -> list[str]:
    problems = Problems("f")
    read_properties(MINIMAL + text, "f", problems, overrides or Overrides())
    with pytest.raises(FileRefused) as refusal:
        problems.refuse()
    return list(refusal.value.problems)


@pytest.mark.parametrize(("program", "target", "name"), ROWS)
def test_names_of_other_programs_map_to_dlapp_keys(program: str, target: str, name: str) -> None:
    assert TARGETS[folded(name)] == target  # no other row has the name with another target
    section, dot, key = target.partition(".")
    if dot and section.partition(" ")[0] in SECTIONS:
        assert key_of(section, key) is not None or key in SECTIONS[section]
        expected = f"use {key}" if section == "application" else f"use {key} in [{section}]"
    else:
        expected = target
        assert expected.startswith(("use ", "remove it: ", "put it "))
    assert refused(f"{name}=1\n") == [f"f:4: application.{name}: is not known, {expected}"]


@pytest.mark.parametrize(
    ("section", "name", "hint"),
    [
        ("application", "num_workers", "use containers in [resources]"),
        ("application", "ps_resources", "use memory, vcores and gcores in [role ps]"),
        ("application", "nodeSelector", "use node_label in [resources]"),
        ("application", "restartPolicy", "use retries in [resources]"),
        ("application", "minAvailable", "use gang"),
        ("application", "checkpoint_path", "use path and hdfs in [checkpoint]"),
        ("application", "worker_launch_cmd", "use command"),
        ("resources", "cpus-per-task", "use vcores"),
        ("resources", "exclude", "use exclude_nodes"),
        ("resources", "partition", "use queue in [application]"),
        ("role ps", "nodeSelector", "use node_label"),
        ("role ps", "replicas", "use instances"),
        ("role ps", "dependsOn", "use depends_on"),
        ("application", "tony.worker.instances", "use instances in [role worker]"),
        ("application", "tony.ps.memory", "use memory in [role ps]"),
        ("application", "tony.worker.gpus", "use gcores in [role worker]"),
        ("application", "tony.application.name", "use appname"),
        ("application", "tony.yarn.queue", "use queue"),
        ("application", "role.ps.instances", "use instances in [role ps]"),
        ("application", "maxRuntime", "use max_runtime"),
        ("resources", "max-runtime", "use max_runtime in [application]"),
        ("application", "docker.image", "use docker_image"),
        ("", "nnodes", "use resources.containers"),
        ("", "num_ps", "use role.ps.instances"),
    ],
)
def test_a_hint_names_the_key_as_the_section_has_it(section: str, name: str, hint: str) -> None:
    assert nearest_key(section, name) == hint


def test_a_section_that_is_named_like_a_role_is_one() -> None:
    assert refused("[worker]\n[ps]\n") == [
        "f:4: worker: is not a section, use [role worker]",
        "f:5: ps: is not a section, use [role ps]",
    ]


def test_the_list_of_all_keys_of_a_section_is_printed_once() -> None:
    text = "qqq=1\nzzz=2\n[resources]\nqqq=1\nzzz=2\n[zzz]\n[qqqq]\n"
    found = refused(text, Overrides({"application.xxxx": "1"}))
    assert [item.partition(", known are ")[0] for item in found] == [
        "f:4: application.qqq: is not known",
        "f:5: application.zzz: is not known, see application.qqq for all names",
        "f:7: resources.qqq: is not known",
        "f:8: resources.zzz: is not known, see resources.qqq for all names",
        "f:9: zzz: is not a section",
        "f:10: qqqq: is not a section, see zzz for all names",
        "--set: application.xxxx: is not known, see application.qqq for all names",
    ]
    assert sum("known are appname, " in item for item in found) == 1


def test_keywords_have_the_same_hints_and_their_names_once() -> None:
    problems = Problems("")
    roles = {"ps": {"nodeSelector": "a", "qqqq": 1, "zzzz": 1}}
    fields = {"command": ["true"], "num_ps": 1, "nodeSelector": "x", "wait": 1, "saved_model_path": "m"}
    values_of(Keywords({**fields, "qqqq": 1, "zzzz": 1, "roles": roles}), problems)
    with pytest.raises(DlappError) as refusal:
        problems.refuse()
    assert [text.partition(", known are ")[0] for text in str(refusal.value).split("\n")] == [
        'num_ps: is not a keyword of an application, use roles={"ps": {"instances": ...}}',
        "nodeSelector: is not a keyword of an application, use node_label",
        "wait: is not a keyword of an application, use the option --wait of dlapp-launcher",
        "saved_model_path: is not a keyword of an application, use outputs",
        "qqqq: is not a keyword of an application",
        "zzzz: is not a keyword of an application, see qqqq for all names",
        "roles.ps.nodeSelector: is not known, use node_label",
        "roles.ps.qqqq: is not known",
        "roles.ps.zzzz: is not known, see roles.ps.qqqq for all names",
    ]
