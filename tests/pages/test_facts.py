"""Facts on an application in its report."""

from __future__ import annotations

from dlapp.pages.facts import asks, facts, without_passwords
from dlapp.values.spec import AppSpec, InputSpec, Resources, RoleSpec, Submission
from tests.pages.samples import application


def submission(engine: str) -> Submission:
    return Submission(
        spec=AppSpec(username="u", appname="a", command=("true",)),
        workspace_archive="",
        workspace_digest="sha256-abc",
        submitter="u",
        submitted_ms=1,
        file="/home/u/a.properties",
        versions={engine: "3.4.1", "dlapp": "0.1.0"},
    )


def test_a_report_names_versions_and_digests_of_the_run() -> None:
    found = dict(facts(application(), submission("yarn")))
    assert (
        found.items()
        >= {
            "yarn": "3.4.1",
            "dlapp": "0.1.0",
            "workspace": "sha256-abc",
            "properties file": "/home/u/a.properties",
        }.items()
    )
    assert "local" not in dict(facts(application(), submission("local")))


def test_requested_resources_are_named_by_role() -> None:
    spec = AppSpec(
        username="u",
        appname="a",
        workspace="/w",
        script="train.sh",
        args=("--name", "two words"),
        docker_image="registry/pytorch",
        roles=(
            RoleSpec(instances=4, resources=Resources(memory_mib=32 << 10, vcores=4, gcores=1)),
            RoleSpec(name="board", command=("tensorboard",), resources=Resources(memory_mib=512)),
        ),
        inputs=(InputSpec(sources=("ftp://tony:secret@host/data",), input_path="data"),),
    )
    assert asks(spec) == [
        ("worker", "4 containers of 32 GiB, 4 vcores, 1 GPU: train.sh --name 'two words' in registry/pytorch"),
        ("board", "1 container of 512 MiB, 1 vcore: tensorboard in registry/pytorch"),
        ("input", "ftp://host/data"),
    ]


def test_facts_of_another_users_application_come_from_the_view_only() -> None:
    assert set(dict(facts(application(), None))) == {"images", "network"}


def test_users_and_passwords_of_urls_are_not_shown() -> None:
    text = "hdfs://tony:s3cret@nn/x https://token@host/y http://host/a@b ftp://:x@h"
    assert without_passwords(text) == "hdfs://nn/x https://host/y http://host/a@b ftp://h"


def test_a_mebibyte_of_text_is_masked_in_one_pass() -> None:
    """The former expression took hours for it."""
    text = "a://" + ":" * (1 << 20)
    assert without_passwords(text) == text
