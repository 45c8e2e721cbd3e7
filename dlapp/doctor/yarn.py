"""Requirements of dlapp on a YARN cluster, as its client sees it, for dlapp-doctor."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Generator, Iterator, Sequence

from dlapp.cluster.yarn.client.preflight import check_am_memory
from dlapp.cluster.yarn.client.rest import NodeInfo, QueueInfo, YarnRest, version_of
from dlapp.cluster.yarn.client.timeline.reader import read_answer
from dlapp.cluster.yarn.container_executor import repair_of
from dlapp.cluster.yarn.dialect import FIELD3_LIMIT, FIELD3_SETTINGS, SETTING, Dialect, choose_dialect
from dlapp.config import Config
from dlapp.doctor.findings import REQUEST_TIMEOUT_S, Check, CheckContext, Finding, clock_finding, failed, passed, warned
from dlapp.errors import ConfigError, DlappError, RequestTooLarge, Unreachable
from dlapp.hadoop.configuration import HadoopConfiguration, read_configuration
from dlapp.hadoop.web import NoAddress, Web
from dlapp.login import USER_VARIABLE, Login, own_login
from dlapp.system.owners import user_name

MIN_VERSION = (2, 7)
_CALCULATOR = "yarn.scheduler.capacity.resource-calculator"
_DOMINANT = "DominantResourceCalculator"


def checks(context: CheckContext) -> list[Check]:
    """Check Hadoop's configuration files, and the answers of the ResourceManager and the timeline server."""
    return [Check("hadoop.conf", functools.partial(_cluster, context.config))]


def _cluster(config: Config) -> Iterator[Finding]:
    site = read_configuration(config.yarn.conf_dir)
    yield passed("hadoop.conf", f"{site.origin}: {', '.join(site.files)}")
    login = own_login()
    origin = USER_VARIABLE if os.environ.get(USER_VARIABLE) else "the operating system"
    own, found = user_name(os.geteuid()), f"{login.user} (from {origin})"
    if login.user == own:
        yield passed("hadoop.user", found)
    else:
        found += f", for the commands and this check; a file without `username` submits as {own}"
        yield warned("hadoop.user", found, f"write username={login.user} in [application], or unset {USER_VARIABLE}")
    with YarnRest(site.web_urls(), login, site.certificates(), timeout_s=REQUEST_TIMEOUT_S) as rest:
        yield from _resource_manager(config, rest)
    yield from _history(site, login)


def _resource_manager(config: Config, rest: YarnRest) -> Iterator[Finding]:
    began = time.time()
    try:
        info = rest.info()
    except DlappError as error:
        yield failed("yarn", str(error))
        return
    ended = time.time()
    version = str(info.get("resourceManagerVersion") or "")
    if version_of(version) < MIN_VERSION:
        yield failed("yarn", f"Hadoop {version or 'of no version'} at {rest.active_url()}", "2.7 is the least")
        return
    yield passed("yarn", f"Hadoop {version} at {rest.active_url()}, {str(info.get('haState') or 'active').lower()}")
    if (server_time_s := rest.server_time_s) is not None:
        # A time in a header is truncated to whole seconds.
        yield clock_finding("clock.yarn", "the ResourceManager's", server_time_s, began - 1, ended)
    new = rest.new_application()
    dialect = yield from _gpus(config, rest, set(new.largest))
    yield from _largest(config, rest, new.largest)
    yield from _nodes(rest.nodes(), dialect)
    yield from _queues(rest.queues())
    yield from _recovery(config, rest)


def _gpus(config: Config, rest: YarnRest, types: set[str]) -> Generator[Finding, None, Dialect | None]:
    """Yield how GPUs are counted, and return it; None if that is misconfigured."""
    from dlapp.gpuid.factory import yarn_assigns_gpus

    configured = config.yarn.dialect
    try:
        dialect = choose_dialect(configured, types, has_field3=rest.configuration(FIELD3_LIMIT) is not None)
    except ConfigError as error:
        yield failed("yarn.dialect", str(error))
        return None
    how = f"{SETTING}: {configured}; the ResourceManager counts {', '.join(sorted(types))}"
    if dialect is Dialect.NONE:
        if configured == "auto":
            repair = "if it has any: docs/hadoop/resource-types.xml, and yarn.resource-types in it"
            yield warned("yarn.dialect", f"none: the cluster counts no GPUs ({how})", repair)
        else:
            yield passed("yarn.dialect", f"none ({how})")
        return dialect
    yield passed("yarn.dialect", f"{dialect.value} ({how})")
    if dialect is Dialect.FIELD3:
        for name in FIELD3_SETTINGS:
            yield passed("yarn.field3", f"{name} is {rest.configuration(name) or 'not set'}")
    else:
        yield _calculator(rest, dialect)
    if config.gpuid.zookeeper.ensemble is None and dialect is not Dialect.YARN_GPU:
        yield warned("gpu.ledger", "there is no GPU ledger; gcores are refused", "set gpuid.zookeeper.ensemble")
    if config.gpuid.zookeeper.ensemble is not None and dialect is Dialect.YARN_GPU and not yarn_assigns_gpus(config):
        found = f"with {dialect.value} tasks do not read the ledger on ZooKeeper, and dlapp-gpu here changes it"
        yield warned("gpu.ledger", found, f"set {SETTING}: {dialect.value} on each machine of the cluster")
    return dialect


def _calculator(rest: YarnRest, dialect: Dialect) -> Finding:
    counted = rest.scheduled_types()
    repair = f"set {_CALCULATOR} to …{_DOMINANT} in capacity-scheduler.xml, and restart the ResourceManager"
    if counted is None:
        return warned("yarn.calculator", f"this Hadoop does not say whether it schedules by {dialect.value}", repair)
    if dialect.value in counted:
        return passed("yarn.calculator", f"the scheduler counts {', '.join(sorted(counted))}")
    return failed(
        "yarn.calculator",
        f"the scheduler counts {', '.join(sorted(counted))} alone: more {dialect.value} are promised than there are",
        repair,
    )


def _largest(config: Config, rest: YarnRest, largest: dict[str, int]) -> Iterator[Finding]:
    text = f"the largest container: {_amounts_text(largest)}"
    least_mib = int(rest.configuration("yarn.scheduler.minimum-allocation-mb") or 0)
    wanted_mib, memory_mib = config.yarn.am_memory_mib, largest.get("memory-mb", 0)
    try:
        check_am_memory(wanted_mib, largest)
    except RequestTooLarge as error:
        yield failed("yarn.maximum", str(error), "lower yarn.am_memory, or raise yarn.scheduler.maximum-allocation-mb")
        return
    if config.defaults.memory_mib > memory_mib or config.defaults.vcores > largest.get("vcores", 0):
        yield warned(
            "yarn.maximum",
            f"{text}; a file without [resources] asks for {config.defaults.memory_mib} MiB and "
            f"{config.defaults.vcores} vcores",
            "lower defaults.memory and defaults.vcores",
        )
    else:
        yield passed("yarn.maximum", text)
    if wanted_mib < least_mib:
        yield warned(
            "yarn.minimum",
            f"the least container has {least_mib} MiB; an ApplicationMaster needs {wanted_mib}",
            "lower yarn.scheduler.minimum-allocation-mb",
        )


def _nodes(nodes: Sequence[NodeInfo], dialect: Dialect | None) -> Iterator[Finding]:
    running = [node for node in nodes if node.state == "RUNNING"]
    if not running:
        yield failed("yarn.nodes", f"no node runs, of {len(nodes)}", "start NodeManagers and read their logs")
        return
    total = {name: sum(node.total.get(name, 0) for node in running) for name in running[0].total}
    yield passed("yarn.nodes", f"{len(running)} nodes run, with {_amounts_text(total)} in all")
    for node in nodes:
        if node.state == "UNHEALTHY":
            health = " ".join(node.health.split())
            yield warned("yarn.nodes.health", f"{node.name} is unhealthy: {health}", repair_of(health) or "mend it")
    if dialect not in (Dialect.GCORES, Dialect.YARN_GPU):
        return
    name = dialect.value
    without = [node.name for node in running if not node.total.get(name)]
    repair = f"on nodes with GPUs: set yarn.nodemanager.resource-type.{name} in node-resources.xml"
    if dialect is Dialect.YARN_GPU:
        repair = "on nodes with GPUs: set yarn.nodemanager.resource-plugins to yarn.io/gpu"
    if len(without) == len(running):
        yield failed("yarn.nodes.gpus", f"no node offers {name}", repair)
    elif without:
        shown = ", ".join(without[:5]) + (" …" if len(without) > 5 else "")
        yield warned("yarn.nodes.gpus", f"{len(without)} of {len(running)} nodes offer no {name}: {shown}", repair)
    else:
        most = max(node.total[name] for node in running)
        yield passed("yarn.nodes.gpus", f"each node offers {name}, the most {most}")


def _queues(queues: Sequence[QueueInfo]) -> Iterator[Finding]:
    if not queues:
        return
    open_ = [one.name for one in queues if one.leaf and one.state == "RUNNING"]
    stopped = [one.name for one in queues if one.leaf and one.state != "RUNNING"]
    text = f"{', '.join(open_) or 'none'} take applications"
    if stopped:
        text += f"; {', '.join(stopped)} do not"
    if "default" in open_:
        yield passed("yarn.queues", text)
    elif not open_:
        yield failed("yarn.queues", text, "set the state of a queue to RUNNING in capacity-scheduler.xml")
    else:
        yield warned("yarn.queues", text, "a file without `queue` goes to default: name another in [application]")


def _recovery(config: Config, rest: YarnRest) -> Iterator[Finding]:
    if rest.configuration("yarn.resourcemanager.recovery.enabled") != "true":
        yield warned(
            "yarn.recovery",
            "a restart of the ResourceManager ends all applications",
            "set yarn.resourcemanager.recovery.enabled and a state store",
        )
    else:
        yield passed("yarn.recovery", "applications live through a restart of the ResourceManager")
    most = int(rest.configuration("yarn.resourcemanager.am.max-attempts") or 2)
    if config.yarn.am_attempts > most:
        yield warned(
            "yarn.attempts",
            f"yarn.am_attempts is {config.yarn.am_attempts}, the cluster allows {most}",
            "raise yarn.resourcemanager.am.max-attempts",
        )


def _history(site: HadoopConfiguration, login: Login) -> Iterator[Finding]:
    if not site.is_on("yarn.log-aggregation-enable"):
        yield warned(
            "yarn.logs",
            f"{site.origin}: logs stay on the nodes, and go some time after an application's end",
            "set yarn.log-aggregation-enable",
        )
    else:
        yield _log_server(site)
    url, reader_url = site.timeline_url(), site.timeline_reader_url()
    if url is None and reader_url is not None:
        yield _timeline_reader(reader_url, site, login)
        return
    if url is None:
        yield warned(
            "yarn.timeline",
            f"{site.origin}: there is no timeline server: what the ResourceManager forgets is not found",
            "set yarn.timeline-service.enabled, and yarn.timeline-service.hostname or, for version 2, "
            "yarn.timeline-service.reader.webapp.address",
        )
        return
    try:
        with Web(REQUEST_TIMEOUT_S, site.certificates()) as web:
            answer = web.call("GET", f"{url}/ws/v1/timeline")
        text = str(json.loads(answer.body).get("timeline-service-version") or answer.status)
    except (Unreachable, NoAddress, ValueError, AttributeError, RecursionError):
        yield warned(
            "yarn.timeline", f"{url} does not answer", "start it, or correct yarn.timeline-service.webapp.address"
        )
        return
    yield passed("yarn.timeline", f"{url}, {text}")


def _timeline_reader(url: str, site: HadoopConfiguration, login: Login) -> Finding:
    """Check that the reader of Timeline Service v2 lists flows, by which forgotten applications are found."""
    try:
        with Web(REQUEST_TIMEOUT_S, site.certificates()) as web:
            answer = web.call("GET", f"{url}/flows/", {"limit": "1", **login.query})
        if not isinstance(read_answer(answer.status, answer.body), list):
            raise ValueError("not a list of flows")
    except (Unreachable, NoAddress, ValueError, RecursionError) as error:
        return warned(
            "yarn.timeline",
            f"{url} (Timeline Service v2) does not list applications: {error}",
            "start the TimelineReaderServer with a store that has flows (HBase), let the user read "
            "(yarn.timeline-service.read.allowed.users), or correct yarn.timeline-service.reader.webapp.address",
        )
    return passed("yarn.timeline", f"{url}, Timeline Service v2")


def _log_server(site: HadoopConfiguration) -> Finding:
    url = site.get("yarn.log.server.url")
    if not url:
        return warned("yarn.logs", f"{site.origin}: no page shows collected logs", "set yarn.log.server.url")
    try:
        with Web(REQUEST_TIMEOUT_S, site.certificates(), accept="*/*") as web:
            web.call("GET", url)
    except (Unreachable, NoAddress) as error:
        repair = "start the history server, or correct yarn.log.server.url"
        return warned("yarn.logs", f"collected, but {url} does not answer: {error}", repair)
    return passed("yarn.logs", f"collected, and shown at {url}")


def _amounts_text(amounts: dict[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())
