"""Files of rules: all faults at once, and the page that lists dlapp's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import dlapp.diagnosis.rules
from dlapp.diagnosis.rules import Act, Where, load_rules, read_rules
from dlapp.errors import ConfigError
from tests.services.missing import missing

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
RULE = "- {rule: out_of_licences, cause: no licence is free, fault: service, next_step: wait, contains: [NO LICENCE]}\n"


def test_every_rule_is_in_a_table_of_the_page() -> None:
    groups = re.findall(r"^### (\w+)(?:, ([\w ]+))?\n\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    table = {
        name: (cause, fault, act)
        for fault, act, rows in groups
        for name, cause in re.findall(r"^\|`(\w+)` \|([^|]+)\|$", rows, re.MULTILINE)
    }
    rules = load_rules(missing())
    assert table == {
        rule.name: (
            rule.cause,
            rule.fault.value,
            "consequence" if rule.is_consequence else rule.act.value.replace("_", " "),
        )
        for rule in rules
    }


def test_the_operators_rules_take_precedence(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULE)
    first, *_ = load_rules(str(tmp_path / "rules.yaml"), owner=os.getuid())
    assert (first.name, first.where, first.act) == ("out_of_licences", Where.LOG, Act.NONE)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULE)
    (tmp_path / "rules.yaml").chmod(0o666)
    with pytest.raises(ConfigError, match="nobody else may write"):
        load_rules(str(tmp_path / "rules.yaml"), owner=os.getuid())


def test_all_errors_of_a_rules_file_are_reported_together() -> None:
    text = (
        RULE
        + RULE
        + (
            "- {rule: Bad Name, cause: x, fault: user, next_step: y, contains: [a]}\n"
            "- {rule: a, cause: x, fault: nobody, next_step: y, contains: [a]}\n"
            "- {rule: b, cause: 'the {thing}', fault: user, next_step: y, contains: [a]}\n"
            "- {rule: c, cause: x, fault: user, next_step: y, contains: [a], line: '('}\n"
            "- {rule: d, cause: x, fault: user, next_step: y}\n"
            "- {rule: e, cause: x, fault: user, next_step: y, contains: [a], colour: red}\n"
            "- {rule: f, cause: x, fault: user, next_step: y, where: exit, signal: 99}\n"
            "- nothing\n"
        )
    )
    with pytest.raises(ConfigError) as refused:
        read_rules(text.encode(), "rules.yaml")
    lines = str(refused.value).splitlines()
    wanted = ["twice", "no name", "fault", "braces", "regular", "contains", "colour", "signal", "must have keys"]
    assert [word in line for word, line in zip(wanted, lines, strict=True)] == [True] * len(wanted)


@pytest.mark.parametrize("text", ["a: b\n", "[", "- " * 100])
def test_a_file_that_is_not_a_list_of_rules_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rules\.yaml"):
        read_rules(text.encode(), "rules.yaml")


def test_no_text_of_a_rule_is_cut_off_at_a_comment() -> None:
    """YAML begins a comment at a blank and #, also in a sentence without quotes."""
    rules = Path(dlapp.diagnosis.rules.__file__).with_name("rules.yaml")
    lines = rules.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if re.match(r"\s+(cause|next_step): [^\"']", line)]
    assert len(texts) > 100
    assert [line for line in texts if " #" in line] == []
