"""The settings of the guard against idle GPUs, and their text form."""

from __future__ import annotations

import re

import pytest

from dlapp.application.keywords import spec_of
from dlapp.config import load_config
from dlapp.errors import SpecError
from dlapp.values.idle_guard import IdleAction, IdleGuard, read_idle_guard
from dlapp.values.spec import AppSpec, Resources, RoleSpec
from tests.services.missing import missing


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        ("off", None),
        ("0.05,30m,stop", IdleGuard(0.05, 1800.0, IdleAction.STOP)),
        ("5%, 30s, warn", IdleGuard(0.05, 30.0, IdleAction.WARN)),
        ("12.5 % , 1h30m , notify", IdleGuard(0.125, 5400.0, IdleAction.NOTIFY)),
    ],
)
def test_a_guard_is_read_from_text(text: str, guard: IdleGuard | None) -> None:
    assert read_idle_guard(text) == guard


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stop", "'stop' is not UTILISATION,WINDOW,ACTION, such as 5%,30m,warn (or off)"),
        ("", "'' is not UTILISATION,WINDOW,ACTION, such as 5%,30m,warn (or off)"),
        ("low,30m,stop", "'low' is not a utilisation, such as 5% or 0.05"),
        ("nan,30m,stop", "the utilisation is nan, it must be above 0 and below 1"),
        ("1,30m,stop", "the utilisation is 1, it must be above 0 and below 1"),
        ("0,30m,stop", "the utilisation is 0, it must be above 0 and below 1"),
        ("100%,30m,stop", "the utilisation is 1, it must be above 0 and below 1"),
        ("5%,29s,stop", "the window is 29 s, the minimum is 30 s"),
        ("5%,30m,end", "is 'end', allowed are warn, notify, stop"),
    ],
)
def test_an_invalid_idle_guard_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        read_idle_guard(text)


def test_the_keywords_of_python_have_it_and_the_configured_default() -> None:
    config = load_config({"defaults.idle_guard": "5%,1m,warn"}, {"HOME": "/x"}, system_file=missing())

    def guard(**fields: object) -> IdleGuard | None:
        given = {"workspace": "w", "script": "s.sh", **fields}
        return spec_of(given, config, has_gpus=True, args=(), env={}).idle_guard

    assert guard() == IdleGuard(0.05, 60.0, IdleAction.WARN)
    assert guard(gcores=0) is None
    assert guard(idle_guard="off") is None
    assert guard(idle_guard="10%,2m,stop") == IdleGuard(0.1, 120.0, IdleAction.STOP)


def spec(guard: IdleGuard, *roles: RoleSpec) -> AppSpec:
    return AppSpec(username="u", appname="a", command=("true",), roles=roles, idle_guard=guard)


def test_a_guard_needs_gpus() -> None:
    guard = IdleGuard(0.05, 30.0, IdleAction.WARN)
    without, with_gpu = Resources(memory_mib=1), Resources(memory_mib=1, gcores=1)
    assert spec(guard, RoleSpec(name="ps", resources=without), RoleSpec(resources=with_gpu)).idle_guard == guard
    with pytest.raises(SpecError, match=r"application.idle_guard: has no effect: no role has GPUs \(gcores\)"):
        spec(guard, RoleSpec(resources=without))


def test_an_application_with_rarer_usage_reports_has_a_longer_window() -> None:
    role = RoleSpec(instances=10_000, resources=Resources(memory_mib=1, gcores=1))
    problem = "the window is 299 s, the minimum is 300 s with 10000 containers, which report their use less often"
    with pytest.raises(SpecError, match=f"application.idle_guard: {problem}"):
        spec(IdleGuard(0.05, 299.0, IdleAction.WARN), role)
    spec(IdleGuard(0.05, 300.0, IdleAction.WARN), role)
