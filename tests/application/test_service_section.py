"""Services in a properties file: ``[service NAME]``, ``kind`` and links."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import Config
from dlapp.values.spec import NO_BOARD, Kind, QuickLink, Resources, Until
from tests.application.test_description import MINIMAL, read, refused

COMMAND = "command=serve --port {port}\n"


def test_a_service_is_a_role_after_all_others_with_a_port_by_which_it_is_ready(place: Path, config: Config) -> None:
    text = f"{MINIMAL}[service api]\n{COMMAND}memory=2g\nenv.A=b\n[resources]\ncontainers=3\ngcores=0\n"
    found = read(place, text, config)
    worker, api = found.spec.roles
    assert (worker.name, worker.instances, found.spec.main_roles) == ("worker", 3, (worker,))
    assert (api.name, api.command, api.instances) == ("api", ("serve", "--port", "{port}"), 1)
    assert (api.service, api.keep_running, api.ports, api.ready) == (True, True, 1, "port")
    assert api.resources == Resources(memory_mib=2048, vcores=1, gcores=0)
    assert found.role_env == {"api": {"A": "b"}}
    assert found.spec.gangs() == ()
    assert found.spec.kind is Kind.BATCH


def test_services_follow_roles_in_any_order_of_sections(place: Path, config: Config) -> None:
    text = f"{MINIMAL}[service api]\n{COMMAND}ready=http:/health\nports=2\n[role worker]\ndepends_on=api:ready\n"
    spec = read(place, text, config).spec
    assert [role.name for role in spec.roles] == ["worker", "api"]
    assert spec.roles[0].depends_on[0].until is Until.READY
    assert (spec.roles[1].ready, spec.roles[1].ports) == ("http:/health", 2)
    assert [[role.name for role in gang] for gang in spec.gangs()] == [["worker"]]


def test_an_application_of_services_needs_no_program_workspace_or_output(place: Path, config: Config) -> None:
    text = f"[application]\nappname=a\nkind=service\n[service api]\n{COMMAND}max_idle=30m\n"
    spec = read(place, text, config).spec
    assert spec.is_service
    assert [role.name for role in spec.roles] == ["api"]
    assert (spec.roles[0].max_idle_s, spec.workspace) == (1800.0, "")


def test_a_service_without_ports_reports_its_own_readiness(place: Path, config: Config) -> None:
    spec = read(place, f"{MINIMAL}[service watch]\n{COMMAND}ports=0\n", config).spec
    assert spec.roles[1].ready == "report"


def test_in_docker_only_the_service_is_in_the_network_of_its_host(place: Path, config: Config) -> None:
    spec = read(place, f"{MINIMAL}docker_image=i\n[service api]\n{COMMAND}", config).spec
    assert [spec.network_of(role) for role in spec.roles] == ["bridge", "host"]


def test_links_name_a_role_and_its_port(place: Path, config: Config) -> None:
    links = "link.docs=api:port2/docs?x=1\nlink.ui=worker:8888\nlink.first=api:port\n"
    spec = read(place, f"{MINIMAL}{links}[service api]\n{COMMAND}ports=2\n", config).spec
    assert spec.links == (
        QuickLink("docs", "api", None, 1, "/docs?x=1"),
        QuickLink("ui", "worker", 8888, 0, "/"),
        QuickLink("first", "api", None, 0, "/"),
    )


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            f"{MINIMAL}kind=servce\n[service api]\n{COMMAND}redy=port\nready=prt\nmax_idle=0\n",
            [
                "5: application.kind: is 'servce', allowed are batch, service",
                "8: service api.redy: is not known, the nearest is ready",
                "9: service api.ready: 'prt' is neither port, report nor http:/PATH; the nearest is port",
                "10: service api.max_idle: is 0 s, it must be above 0",
            ],
        ),
        (
            f"{MINIMAL}[service api]\n[service]\n{COMMAND}[service Big]\n{COMMAND}[services x]\n",
            [
                "5: service api: has neither script nor command",
                "6: service: needs a name: [service board]",
                "8: service Big: 'Big' is not a name: small letters, digits, '-' and '_', 31 at most",
                "10: services x: is not a section, use [service]",
            ],
        ),
        (
            "[application]\nappname=a\nkind=service\n",
            ["3: application.kind: is service, and there is no [service NAME]"],
        ),
        (
            f"[application]\nappname=a\nkind=service\ncommand=x\ngang=all\n[service api]\n{COMMAND}"
            "[to_hdfs]\noutput_path=o\nhdfs=/o\n",
            [
                "4: application.command: has no effect with kind=service: every [service NAME] has its own program",
                "5: application.gang: has no effect with kind=service, which has no roles but services",
                "8: to_hdfs: is not possible with kind=service, whose programs have no end after which there is "
                "something to store",
            ],
        ),
        (
            f"{MINIMAL}[service api]\n{COMMAND}max_idle=1h\n",
            [
                "7: service api.max_idle: is for kind=service in [application]; in another application a service ends "
                "with it"
            ],
        ),
        (
            f"{MINIMAL}[service api]\n{COMMAND}ports=0\nready=http:/x\n",
            ["8: service api.ready: is http:/x, and ports is 0"],
        ),
        (
            f"{MINIMAL}link.a=ap:port\nlink.b=api:port2\nlink.c=api\nlink._d=api:1\n[service api]\n{COMMAND}",
            [
                "7: application.link.c: 'api' is not ROLE:PORT/path, where PORT is a number, or port, port2, ... of "
                "the role",
                "8: application.link._d: '_d' is not a name: at most 31 of A-Z, a-z, 0-9, _ and -, no _ or - first",
                "5: application.link.a: there is no role ap, the nearest is api",
                "6: application.link.b: is on port number 2 of role api, which has ports=1",
            ],
        ),
        (
            f"{MINIMAL}[role api]\n[service api]\n{COMMAND}",
            ["6: service api: has the name of [role api]; each needs a name of its own"],
        ),
    ],
)
def test_all_errors_are_reported_together_with_the_nearest_names(
    place: Path, config: Config, text: str, faults: list[str]
) -> None:
    assert set(faults) <= set(refused(place, text, config))


OUTPUT = "[to_hdfs]\noutput_path=out\nhdfs=/o\n"
CHECKPOINT = "[checkpoint]\npath=model\nhdfs=/c\n"


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        (f"tensorboard=true\n{OUTPUT}{CHECKPOINT}", "out"),
        (f"tensorboard=true\n{CHECKPOINT}", "model"),
        (f"tensorboard=logs/./run\n{OUTPUT}", "logs/run"),
        (f"tensorboard=false\n{OUTPUT}", ""),
        (OUTPUT, ""),
    ],
)
def test_tensorboard_reads_the_output_or_the_named_directory(
    place: Path, config: Config, text: str, directory: str
) -> None:
    assert read(place, f"{MINIMAL}{text}", config).spec.tensorboard == directory


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tensorboard=true\n", "is true, and there is no [to_hdfs]; name a directory of the workspace"),
        ("tensorboard=../x\n", "'../x' leads out of the workspace"),
        ("tensorboard=true\n[sweep]\ngrid.A=1, 2\nmetric=x\n", NO_BOARD),
        (f"kind=service\ntensorboard=true\n[service a]\n{COMMAND}", NO_BOARD),
    ],
)
def test_tensorboard_without_a_directory_to_read_is_refused(place: Path, config: Config, text: str, fault: str) -> None:
    faults = refused(place, f"{MINIMAL}{text}", config)
    assert f"application.tensorboard: {fault}" in [item.partition(": ")[2] for item in faults]
