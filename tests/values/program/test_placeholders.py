"""Test what is a placeholder in a word, and what only looks like one."""

from __future__ import annotations

import pytest

from dlapp.application.notes import known_names
from dlapp.sweep.spec import GridParameter, Sampler, SweepSpec
from dlapp.values.ids import ApplicationId
from dlapp.values.program.placeholders import names_in, substitute
from dlapp.values.spec import AppSpec, CheckpointSpec, OutputSpec, PayloadCache, RoleSpec, Submission

VALUES = {"index": "3", "role": "ps", "hosts:ps": "10.0.0.1:1,10.0.0.2:2", "cache.models": "/c", "lr": "{index}"}


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ("--seed={index}", "--seed=3"),
        ("{role}-{index}", "ps-3"),
        ("--ps_hosts={hosts:ps}", "--ps_hosts=10.0.0.1:1,10.0.0.2:2"),
        ("{cache.models}/bert", "/c/bert"),
        ('{"seed":{index}}', '{"seed":3}'),
        ('{"a":{"seed":{index}}}', '{"a":{"seed":3}}'),
        ("{index}}", "3}"),
        ("{{index}", "{3"),
        ("{lr}", "{index}"),
    ],
)
def test_a_placeholder_is_replaced_once_at_any_position(word: str, replaced: str) -> None:
    assert substitute((word,), VALUES) == (replaced,)


@pytest.mark.parametrize(
    "word",
    [
        "${index}",
        "$${index}",
        "${{index}}",
        "{{index}}",
        '{"index": 1}',
        '{"a": 1}',
        "{:.2f}",
        "{}",
        "{index:03d}",
        "{index!r}",
        "{ index }",
        "{Index}",
        "{print}",
        "{a,b}",
        "{1..3}",
        "{hosts:worker}",
        "{cache.other}",
        "{indéx}",
        "{index",
        "index}",
    ],
)
def test_other_braces_stay_as_they_are(word: str) -> None:
    assert substitute((word,), VALUES) == (word,)


def test_known_and_unknown_names_in_a_word_are_found() -> None:
    assert list(names_in("{a}/{hosts:ps}-${b}{{c}}{cache.x_1}{1}")) == ["a", "hosts:ps", "cache.x_1"]


def test_an_application_has_the_placeholders_of_its_roles_caches_and_sweep() -> None:
    roles = (RoleSpec(name="ps", command=("a",)), RoleSpec(name="worker", command=("a",)))
    spec = AppSpec(username="u", appname="a", roles=roles, caches=(PayloadCache("models", "/m"),))
    found = known_names(spec)
    assert {"index", "role", "app_id", "port", "master", "hosts:ps", "hosts:worker", "cache.models"} <= set(found)
    assert "trial" not in found
    sweep = SweepSpec(sampler=Sampler.GRID, trials=2, grid=(GridParameter("lr", ("1", "2")),))
    assert known_names(AppSpec(username="u", appname="a", command=("a",), sweep=sweep))[:2] == ("lr", "trial")


def submission(*targets: str, checkpoint: str = "") -> Submission:
    spec = AppSpec(
        username="u",
        appname="a",
        command=("true", "{app_id}"),
        outputs=tuple(
            OutputSpec(name=f"n{place}", output_path=f"o{place}", target=target) for place, target in enumerate(targets)
        ),
        checkpoint=CheckpointSpec(path="c", target=checkpoint) if checkpoint else None,
    )
    return Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=0)


def test_the_id_of_the_application_is_put_into_its_targets() -> None:
    one = submission("file:///r/{app_id}", "hdfs://nn/{app_id}/{id}", "file:///plain", checkpoint="file:///c/{app_id}")
    named = one.named(ApplicationId(1700000000000, 42)).spec
    assert [output.target for output in named.outputs] == [
        "file:///r/application_1700000000000_0042",
        "hdfs://nn/application_1700000000000_0042/{id}",
        "file:///plain",
    ]
    assert named.checkpoint is not None
    assert named.checkpoint.target == "file:///c/application_1700000000000_0042"
    assert named.command == ("true", "{app_id}")


def test_a_submission_without_the_id_in_a_target_stays_the_same_value() -> None:
    one = submission("file:///r")
    assert one.named(ApplicationId(1700000000000, 42)) is one
