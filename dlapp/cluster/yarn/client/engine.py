"""YarnEngine: submit, inspect and end applications on a Hadoop cluster.

YARN is called over REST; files are accessed through the `StagingFiles` passed to the engine. Submitting, reading and
ending have a class each, whose methods are the engine's; they share the connections of one session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.cluster import NOT_ENDED
from dlapp.cluster.engine import EngineInfo, PlanFacts, QueueFacts
from dlapp.cluster.view_forms import ViewForms
from dlapp.cluster.yarn import bundle
from dlapp.cluster.yarn.client import preflight
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.kill import ApplicationKiller
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.local_files.last_application import local_cache
from dlapp.cluster.yarn.client.rest import NodeInfo, QueueInfo, version_of
from dlapp.cluster.yarn.client.session import ClusterSession, FilesOf
from dlapp.cluster.yarn.client.shared_tokens import check_sharing, find_token
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.client.submission import ApplicationSubmitter
from dlapp.cluster.yarn.client.views import PRIORITY_LIMIT, check_tags
from dlapp.cluster.yarn.client.waits import WAITING_STATES, ClusterFacts, limit_lines
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.staging import TRIALS, USAGE, StagingPaths
from dlapp.config import Config
from dlapp.errors import (
    ConfigError,
    DlappError,
    NotFound,
    Refuse,
    RequestTooLarge,
    SpecError,
    Unreachable,
    UsageError,
    raise_error,
    refusals,
)
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.login import Login
from dlapp.sweep.spec import MAX_RESULTS_BYTES
from dlapp.system import clock
from dlapp.value import Closeable
from dlapp.values.access import VIEWERS, ControlAccess
from dlapp.values.ids import ApplicationId
from dlapp.values.report import State
from dlapp.values.serialization import parse_json
from dlapp.values.spec import AppSpec, RoleSpec
from dlapp.values.start_conditions import KILLED, evaluate_conditions, how_ended
from dlapp.values.usage import MAX_USAGE_BYTES

if TYPE_CHECKING:
    from dlapp.values.launch_spec import LedgerSettings


class YarnEngine(Closeable):
    """The client's side of a YARN cluster: its `dlapp.cluster.engine.Engine`.

    Args:
        open_files: opens the file system of the cluster as one user.
        login: identity for all requests.
        ledger_of: returns the address of the configured GPU ledger.

    Raises:
        ConfigError: no cluster is configured.
    """

    def __init__(
        self,
        config: Config,
        open_files: FilesOf,
        login: Login,
        *,
        ledger_of: Callable[[Config], LedgerSettings] | None = None,
    ) -> None:
        self._session = ClusterSession(config, open_files, login)
        self._masters = AmClients()
        submitter = ApplicationSubmitter(self._session, ledger_of)
        self._reader = reader = ApplicationReader(self._session, self._masters)
        killer = ApplicationKiller(self._session, self._masters, reader)
        self.prepare, self.submit, self.run_on_node = submitter.prepare, submitter.submit, submitter.run_on_node
        self.find_archive = submitter.find_archive
        self.ids, self.submission = reader.ids, reader.submission
        self.logs, self.aggregated_log, self.dashboard_urls = reader.logs, reader.aggregated_log, reader.dashboard_urls
        self.add_receipts = reader.add_receipts
        self.soft_kill, self.kill, self.release = killer.soft_kill, killer.kill, killer.release

    def close(self) -> None:
        """Close the connections."""
        self._masters.close()
        self._session.close()

    # ---- capacity and checks ----

    def info(self) -> EngineInfo:
        """Check that the cluster answers and has a supported version, and return the engine's facts.

        Raises:
            Unreachable: no ResourceManager answers, or one of a version before 2.7.
            ConfigError: the configured dialect is not the cluster's.
        """
        version = str(self._session.rest().info().get("resourceManagerVersion") or "")
        if version_of(version) < (2, 7):
            raise Unreachable(f"the ResourceManager is Hadoop {version or 'of no version'}; 2.7 is the least")
        self._session.forget()
        dialect = self._session.dialect()
        gcores = self._session.largest().get(dialect.value, 0) if dialect is not Dialect.FIELD3 else 1
        has_gpus = dialect is not Dialect.NONE and gcores > 0 and self._session.has_ledger()
        hdfs = self._session.hdfs(self._session.user)
        return EngineInfo(name="yarn", version=version, has_gpus=has_gpus, hdfs=hdfs, paths_on_hdfs=True)

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        """Reject a request that this cluster can never satisfy, and a queue that accepts no applications.

        Args:
            spec: the application.
            refuse: called with each error; by default it raises the first.

        Returns:
            Lines for the user: a request that no present node can satisfy, though a later one might; unknown node
            names.

        Raises:
            RequestTooLarge: a container exceeds the cluster's maximum, or GPUs where none are counted.
            ConfigError: GPUs, without a GPU ledger.
            SpecError: the queue, tags, a node label on a cluster without labels, an application to wait for, or input
                that the nodes could not read.
            NotFound, Denied, Unreachable: the user's home directory is not writable, or the queue rejects their
                applications.
        """
        rest = self._session.rest()
        dialect, user, lines = self._session.dialect(), spec.username, []
        with refusals(refuse):
            preflight.check_am_memory(self._session.config.yarn.am_memory_mib, self._session.largest())
        for role in spec.roles:
            with refusals(refuse):
                lines += self._check_role(spec, role, dialect, refuse)
        if spec.after:
            with refusals(refuse):
                if failure := evaluate_conditions(spec.after, self._ends_of(spec)).failure:
                    raise SpecError("application.after", failure)
        lines += self._node_lines(spec)
        if spec.requeue:
            lines.append("application.requeue has no effect on a cluster: YARN restarts what is lost with a node")
        with refusals(refuse):
            check_tags(spec, self._session.configuration)
        queues = rest.queues()
        with refusals(refuse):
            preflight.check_queue(queues, spec.queue or "default", user)
            lines += limit_lines(spec, queues, self._session, clock.now_ms())
        self._check_labels(spec, queues, refuse)
        with refusals(refuse):
            preflight.check_home(self._session.files(user), user)
            lines += check_sharing(self._session.files(user), spec)
        with refusals(refuse):
            preflight.check_schemes(spec.inputs, self._session.config.storage.node_schemes, _missing_libraries)
        if spec.priority is not None:
            most = int(self._session.configuration(PRIORITY_LIMIT) or 0)
            if spec.priority > most:
                lines.append(f"priority {spec.priority} is lowered to {most} ({PRIORITY_LIMIT})")
        return lines

    def _check_role(self, spec: AppSpec, role: RoleSpec, dialect: Dialect, refuse: Refuse) -> list[str]:
        """Return lines for the user about the amounts of a role's containers. Raises as `check`."""
        of_role = f"role {role.name}: " if len(spec.roles) > 1 else ""

        refused = False

        def refuse_amount(error: DlappError) -> None:
            nonlocal refused
            assert isinstance(error, RequestTooLarge)
            refused = True
            field = error.field.replace("resources", spec.section_of(role))
            refuse(RequestTooLarge(f"{of_role}{error}", field))

        configuration = self._session.configuration
        found = preflight.check_limits(role.resources, dialect, self._session.largest(), configuration, refuse_amount)
        if role.resources.gcores and not refused:  # what never fits needs no ledger
            if not self._session.has_ledger():
                raise ConfigError("gcores are requested, but there is no GPU ledger: set gpuid.zookeeper.ensemble")
            self._session.check_credentials()
            is_plain = spec.image_of(role) is None
            preflight.check_gpus(spec.placement_of(role), spec.section_of(role), dialect, is_plain=is_plain)
        found += preflight.check_memory(role.resources, configuration)
        return [f"{of_role}{line}" for line in found]

    def _check_labels(self, spec: AppSpec, queues: Sequence[QueueInfo], refuse: Refuse) -> None:
        """Reject a node label that the cluster does not have, or that the queue may not use."""

        def check_label(key: str, label: str) -> None:
            preflight.check_label(key, label, self._session.configuration, self._session.rest().node_labels)
            if spec.queue:  # without one, YARN's queue mappings may choose another one than "default"
                preflight.check_label_of_queue(key, label, queues, spec.queue, spec.username)

        for key, (first, *_) in spec.placement_keys():
            if key.endswith("node_label"):
                with refusals(refuse):
                    check_label(key, first)
        if label := self._session.config.yarn.am_node_label:
            with refusals(refuse):
                try:
                    check_label("yarn.am_node_label", label)
                except SpecError as error:
                    raise ConfigError(str(error)) from error

    def _ends_of(self, spec: AppSpec) -> dict[str, str]:
        """Return how the awaited applications have ended, as far as they have.

        Raises:
            SpecError: one of them does not exist, or is another user's.
        """
        ends = {}
        for one in spec.after:
            try:
                report = self._reader.report(ApplicationId.from_text(one.application_id))
            except NotFound as error:
                raise SpecError("application.after", str(error)) from error
            if report.user != spec.username:
                problem = f"{one.application_id} is {report.user}'s; it can wait for {spec.username}'s own only"
                raise SpecError("application.after", problem)
            if report.state is State.KILLED:
                ends[one.application_id] = KILLED
            elif report.state.ended:
                ends[one.application_id] = how_ended(report.final_status.value)
        return ends

    def _node_lines(self, spec: AppSpec) -> list[str]:
        """Return the lines for the user about the current nodes; a cached list suffices if there is nothing to
        report."""
        if not self._check_nodes(spec, self._session.nodes()):
            return []
        return self._check_nodes(spec, self._session.nodes(refresh=True))

    def _check_nodes(self, spec: AppSpec, nodes: Sequence[NodeInfo]) -> list[str]:
        dialect, lines = self._session.dialect(), []
        for role in spec.roles:
            of_role = f"role {role.name}: " if len(spec.roles) > 1 else ""
            found = preflight.check_nodes(role.resources, spec.placement_of(role), dialect, nodes)
            lines += [f"{of_role}{line}" for line in found]
        for key, names in spec.placement_keys():
            if not key.endswith("node_label"):
                lines += preflight.check_node_names(key, names, nodes)
        return lines

    def node_names(self) -> tuple[str, ...]:
        """Return the hosts that run containers now. Raises Unreachable."""
        return tuple(node.host for node in self._session.nodes(refresh=True))

    def archive_cache(self) -> str:
        """Return the directory for packed workspaces on this machine; its content is uploaded to the cluster."""
        return local_cache("workspaces")

    def ensure_runner(self) -> str:
        """Do nothing: YARN takes care of submitted applications."""
        return ""

    # ---- views and logs ----

    def owner(self, application_id: str) -> str:
        """Return the owner of an application, as the ResourceManager reports it. Raises NotFound."""
        return self._reader.report(ApplicationId.from_text(application_id)).user

    def view(self, application_id: ApplicationId | str) -> ViewForms:
        """Return the current view of an application; see `dlapp.cluster.yarn.client.status.ApplicationReader`."""
        return ViewForms(value=self._reader.view(ApplicationId.from_text(str(application_id))))

    def view_in_full(self, application_id: ApplicationId | str) -> ViewForms:
        """Return `view`, with the smallest change that ends its wait and an estimated start."""
        return ViewForms(value=self._reader.view_in_full(ApplicationId.from_text(str(application_id))))

    def plan(self, spec: AppSpec) -> PlanFacts:
        """Return an estimate for an application that might be submitted now. Raises RequestTooLarge, Unreachable."""
        return ClusterFacts(self._session).plan(spec, clock.now_ms(), self._ends_of(spec))

    def queue_facts(self) -> QueueFacts:
        """Return the start order of the waiting applications by queue, and the expected times. Raises Unreachable."""
        reports = self._session.rest().reports(user=None)
        waiting = [one for one in reports if one.state in WAITING_STATES and not one.am_attempt]
        self._reader.notify_waits(waiting)
        return ClusterFacts(self._session).of_queues(waiting, clock.now_ms())

    def views(self, *, everybody: bool = False, user: str | None = None, limit: int | None = None) -> list[ViewForms]:
        """Return the views of many applications; see `dlapp.cluster.yarn.client.status.ApplicationReader`."""
        return [ViewForms(value=one) for one in self._reader.views(everybody=everybody, user=user, limit=limit)]

    def usage_json(self, application_id: ApplicationId) -> Any:
        """Return the usage history of one of the caller's applications; None: there is none."""
        files = self._session.files(self._session.user)
        places = StagingPaths(files.home)
        for place in (places.usage(application_id), f"{places.staging(application_id)}/{USAGE}"):
            with contextlib.suppress(NotFound):
                return parse_json(files.read(place, max_bytes=MAX_USAGE_BYTES))
        return None

    def trials_text(self, application_id: ApplicationId) -> str:
        """Return the results of the sweep of one of the caller's applications; empty: none."""
        files = self._session.files(self._session.user)
        places = StagingPaths(files.home)
        for place in (places.trials(application_id), f"{places.staging(application_id)}/{TRIALS}"):
            with contextlib.suppress(NotFound):
                return files.read(place, max_bytes=MAX_RESULTS_BYTES).decode(errors="replace")
        return ""

    def unstored(self, view: Mapping[str, Any]) -> list[str]:
        """Return the locations of unstored output as ``host:path``: in the user's directory on the container's node."""
        containers = [two for one in view["containers"] for two in (one, *one.get("earlier", ()))]
        return [f"{one['host']}:{path}" for one in containers for path in one.get("unstored", ())]

    def control_access(self, application_id: ApplicationId) -> ControlAccess:
        report = self._reader.report(application_id)
        if report.state.ended:
            raise NotFound(f"{application_id} had already ended: {report.final_status.value.lower()}")
        own = tools_tokens.is_own(application_id, report.user, self._session.user)
        return self._masters.access(report, None if own else find_token(self._session, report, VIEWERS))

    def check_removal(self, application_id: ApplicationId) -> None:
        """Reject an application that the ResourceManager still knows: nobody can shorten its list.

        Raises:
            NotFound: neither it nor the caller's history has it.
            UsageError: it has not ended, or the ResourceManager has not forgotten it.
        """
        try:
            report = self._session.rest().report(application_id)
        except ApplicationNotFound as missing:
            files = self._session.files(self._session.user)
            if files.status(StagingPaths(files.home).history(application_id)) is None:
                raise NotFound(f"{application_id} is not in your history on the cluster") from missing
            return
        if not report.state.ended:
            raise UsageError(f"{application_id} is {report.state.value}: {NOT_ENDED}")
        raise UsageError(
            f"{application_id} is still known to the ResourceManager, whose list nobody can shorten: it can be removed "
            "when the ResourceManager has forgotten it (yarn.resourcemanager.max-completed-applications)"
        )

    def remove(self, application_id: ApplicationId) -> None:
        """Remove an application that the ResourceManager has forgotten from the caller's history; its output stays.

        Raises:
            NotFound, UsageError: as `check_removal`.
        """
        self.check_removal(application_id)
        files = self._session.files(self._session.user)
        places = StagingPaths(files.home)
        # In this order: a directory without a history would be settled again.
        files.remove(places.staging(application_id))
        files.remove(places.usage(application_id))
        files.remove(places.trials(application_id))
        files.remove(places.history(application_id))


def _missing_libraries(schemes: Sequence[str]) -> dict[str, str]:
    """Return the schemes that nodes cannot read with dlapp's archive, each with the missing package."""
    path, _ = bundle.packed(local_cache("travel"), remote=True)
    return bundle.missing_libraries(path, schemes)
