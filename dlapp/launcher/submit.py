"""Steps of ``dlapp-launcher``: check everything, pack the workspace, submit; and the lines that it prints.

Before all checks have passed, no application is started, and only a packed workspace is written, to its cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.application.build import os_user
from dlapp.application.description import (
    Description,
    RecordedFile,
    ResolvedApplication,
    Snapshot,
    Source,
    describe,
    read_application,
)
from dlapp.application.notes import submission_notes
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.application.properties import Problems
from dlapp.cluster.engine import Engine, EngineInfo
from dlapp.config import Config
from dlapp.errors import DlappError, NotFound, RequestTooLarge, SpecError, UsageError, problem_of
from dlapp.id_text import is_application_id
from dlapp.launcher.checks import Note, SubmissionCheck
from dlapp.launcher.workspace.pack import pack
from dlapp.launcher.workspace.revision import RevisionQuery
from dlapp.launcher.workspace.scan import EMPTY, Scan, scan_workspace, too_large
from dlapp.locations import shown
from dlapp.notifications.settings import settings_of
from dlapp.system import clock
from dlapp.value import replace
from dlapp.values.access import new_secret
from dlapp.values.ids import ApplicationId
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.program.submitter import inherited
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, Secrets, Submission
from dlapp.version import __version__

if TYPE_CHECKING:
    from dlapp.launcher.origin import Origin
    from dlapp.node_policy import DockerPolicy, RegistryPolicy
    from dlapp.values.launch_spec import LedgerSettings, LiveWorkspace
    from dlapp.values.notification import NotificationSettings

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
LeaveOut = Callable[[AppSpec], Sequence[str]]
NetworkProblem = Callable[[AppSpec], str]
Resolve = Callable[[str], str]
ReadDockerPolicy = Callable[[], "DockerPolicy | None"]
Continued = Callable[[ResolvedApplication], ResolvedApplication]

MAX_NAMED = 5
PAGE_S = 0.5
"""How long to wait for the page of an application that is just starting; the id is printed before."""


def launch(
    source: Source,
    config: Config,
    engine: Engine,
    *,
    say: Say,
    note: Note,
    progress: Progress | None = None,
    overrides: Overrides = NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    leave_out: LeaveOut = lambda spec: (),
    network_problem: NetworkProblem = lambda spec: "",
    resolve: Resolve = str,
    docker_policy: ReadDockerPolicy = lambda: None,
    origin: Origin | None = None,
    live: LiveWorkspace | None = None,
    ledger: LedgerSettings | None = None,
) -> ApplicationId:
    """Check, pack and submit an application, from a properties file or a spec.

    Args:
        source: the properties file, or the spec.
        config, engine: the configuration, and the engine to run the application on.
        say: called with each output line: those of the original tool, then ours.
        note: called with notices for the user: keys without effect, files that are not packed.
        progress: called with the packed bytes of the workspace and the total.
        overrides: values that override the file's.
        environ: the caller's; the program gets variables of it (`dlapp.values.program.submitter`, and pass_env).
        leave_out: returns gitignore patterns of further files not to pack: those that dlapp has put there.
        network_problem: returns why the containers cannot have their network, as far as known here.
        resolve: returns the complete id for another name of an application.
        docker_policy: returns what the operator of the machine that runs the containers allows, as far as known here.
        origin: the application that is submitted again; None for a new one.
        live, ledger: as in `Submission` and `Secrets`; with ``live`` nothing is packed.

    Raises:
        FileRefused: the file has errors, input is missing, output cannot be written; the message lists all problems.
        RequestTooLarge: no node can ever meet the request.
        UsageError: the workspace is too large, or a file in it cannot be packed.
        Unreachable: the engine does not answer.
    """
    with _step(say, "C3 DL Cluster Version check", "ok"):
        info = engine.info()
    is_packed = live is not None or (origin is not None and bool(origin.archive))
    with _step(say, "CheckDLAppProperties", "ok"):
        checked = check(
            describe(source, config, info, overrides, environ),
            config,
            engine,
            leave_out=(lambda spec: ()) if is_packed else leave_out,
            network_problem=network_problem,
            resolve=resolve,
            docker_policy=docker_policy,
            continued=None if origin is None else lambda application: origin.continued(application, overrides),
            is_packed=is_packed,
            settings=overrides.names.settings if isinstance(source, RecordedFile) else "",
            environ=environ,
        )
    notify = settings_of(config, checked.application.spec.notify)
    _print_checked(checked, say, note, origin if is_packed else None)
    with _step(say, "DL App Submission", "OK"):
        workspace = _Workspace() if live else _packed_before(origin)
        workspace = workspace or _pack(checked, config, engine, note, progress, environ)
        submission = replace(_submission(checked.application, config, info, workspace, origin), live=live)
        secrets = replace(_secrets(checked, notify, note, environ, is_live=live is not None), ledger=ledger)
        application_id = engine.submit(submission, secrets)
    if live is None:  # the user waits for the shell, not for its page
        _print_urls(application_id, engine, say)
    say(resources_line(checked.application.spec))
    return application_id


class _Workspace(NamedTuple):
    """A packed workspace; all fields are empty if there is none.

    Args:
        archive, digest: as in `Submission`.
        source: its git commit, as text.
    """

    archive: str = ""
    digest: str = ""
    source: str = ""


def _packed_before(origin: Origin | None) -> _Workspace | None:
    """Return the workspace of an application that is submitted again; None: it has its own."""
    if origin is None or not origin.archive:
        return None
    return _Workspace(origin.archive, origin.submission.workspace_digest, origin.submission.source)


def _print_checked(checked: CheckedApplication, say: Say, note: Note, origin: Origin | None) -> None:
    """Print the notes on an application, and the workspace that is packed, or the application it was packed for."""
    for line in checked.notes:
        note(line)
    spec = checked.application.spec
    if origin is not None:
        say(f"user_dev_workspace = as it was for {origin.application_id}")
    elif spec.workspace:
        say(f"user_dev_workspace_path = {spec.workspace}")
        say(f"user_dev_workspace_exclude_list = {list(spec.exclude)}")
        say(f"user_dev_workspace dir size = {-(-checked.scan.size_bytes // 1024)} kb")


def _pack(
    checked: CheckedApplication,
    config: Config,
    engine: Engine,
    note: Note,
    progress: Progress | None,
    environ: Mapping[str, str],
) -> _Workspace:
    """Pack the workspace of an application; the arguments are those of `launch`."""
    spec = checked.application.spec
    if not spec.workspace:
        return _Workspace()
    revision = RevisionQuery(spec.workspace, environ)
    limit = config.storage.workspace_limit_bytes
    try:
        packed = pack(checked.scan, engine.archive_cache(), limit_bytes=limit, progress=progress)
    finally:
        source = revision.text()
    for line in packed.warnings:
        note(line)
    return _Workspace(packed.archive, packed.digest, source)


def _submission(
    application: ResolvedApplication, config: Config, info: EngineInfo, workspace: _Workspace, origin: Origin | None
) -> Submission:
    """Return what is submitted of an application."""
    earlier = "" if origin is None else origin.application_id
    resumes = origin is not None and origin.resumes
    return Submission(
        spec=application.spec,
        workspace_archive=workspace.archive,
        workspace_digest=workspace.digest,
        submitter=os_user(),
        submitted_ms=clock.now_ms(),
        log_limit_bytes=config.runtime.log_limit_bytes,
        metrics_targets=config.metrics.targets or "",
        properties="" if application.properties is None else application.properties.to_record(),
        file=application.snapshot.path,
        resumed_from=earlier if resumes else "",
        again_of="" if resumes else earlier,
        checkpoints_of=origin.checkpoints_of if origin is not None else "",
        source=workspace.source,
        versions={info.name: info.version, "dlapp": __version__},
    )


def _secrets(
    checked: CheckedApplication,
    notify: NotificationSettings | None,
    note: Note,
    environ: Mapping[str, str],
    *,
    is_live: bool,
) -> Secrets:
    """Return what only the application may read.

    Args:
        checked: the application.
        notify: destinations of notifications.
        note, environ: see `launch`.
        is_live: it is a shell in the user's own directory, which uses a terminal, keys and the like.
    """
    application = checked.application
    keeps_all = is_live and not application.spec.uses_docker
    return Secrets(
        control_secret=new_secret(),
        env=application.env,
        role_env=dict(application.role_env),
        environment=dict(environ) if keeps_all else inherited(environ),
        notify=notify,
        registry_credentials=_registry_credentials(application.spec, checked.policy, note, environ),
    )


def print_spec(
    source: str | Snapshot, config: Config, engine: Engine, overrides: Overrides = NO_OVERRIDES
) -> dict[str, Any]:
    """Return the content of a properties file, ``properties``, and its resolved form here, ``spec``; both in their JSON
    form.

    Values of ``env.NAME`` are masked; `Properties.from_json` and `dlapp.values.serialization.from_json` read the two.

    Args:
        source: the file.
        config: the configuration.
        engine: to run the application on.
        overrides: values that override the file's.

    Raises:
        FileRefused: the file has errors; the message lists all of them.
    """
    application = read_application(source, config, engine.info(), overrides)
    assert application.properties is not None
    return {"properties": application.properties.masked().to_json(), "spec": to_json(application.spec)}


def resources_line(spec: AppSpec) -> str:
    """Return the resolved resource request as a line for the user."""
    asks = []
    for role in spec.roles:
        each = role.resources
        count = f"{role.instances} container{'s' if role.instances > 1 else ''}"
        count = f"{role.name}: {count}" if len(spec.roles) > 1 else count
        asks.append(f"{count}, each with memory {each.memory_mib} MiB, vcores {each.vcores}, gcores {each.gcores}")
    return f"DL App Resources = {'; '.join(asks)}"


@contextmanager
def _step(say: Say, name: str, ok: str) -> Iterator[None]:
    """Print the end of a step."""
    try:
        yield
    except DlappError:
        say(f"{name} : fail")
        raise
    say(f"{name} : {ok}")


class CheckedApplication(NamedTuple):
    """An application without errors, and what was found on the way.

    Args:
        application: the application.
        scan: the files to pack.
        policy: registry rules of the machine that runs the containers; None if they are not known.
        notes: lines for the user.
    """

    application: ResolvedApplication
    scan: Scan
    policy: RegistryPolicy | None
    notes: list[str]


def check(
    found: Description,
    config: Config,
    engine: Engine,
    *,
    leave_out: LeaveOut,
    network_problem: NetworkProblem,
    resolve: Resolve,
    docker_policy: ReadDockerPolicy,
    continued: Continued | None = None,
    is_packed: bool = False,
    settings: str = "",
    environ: Mapping[str, str] = os.environ,
) -> CheckedApplication:
    """Check an application against its engine, workspace, input and output; all errors come in one answer.

    Args:
        found: the application as it was read.
        config: the configuration.
        engine: to run the application on.
        leave_out, network_problem, resolve, docker_policy: as for `launch`.
        continued: returns the application as the continuation of an earlier one; raises `DlappError`.
        is_packed: whether the workspace was packed before, and is not checked.
        settings: option that sets keys of an application without its own file; empty if it has one.
        environ: the environment of the submitter.

    Raises:
        FileRefused: it has errors; the message lists all of them.
        DlappError: its only error is one of the engine: `RequestTooLarge`, `Denied`, `Unreachable`.
        UsageError: the workspace is too large, or it cannot be continued.
    """
    problems, application = found.problems, found.application
    if application is None:
        problems.refuse()
        raise AssertionError("an application is missing only after an error")
    if continued is not None and not problems:
        application = continued(application)
    application = _with_full_ids(application, resolve, problems)
    notes = [*config.ignored, *application.notes, *_check_engine(application, engine, problems)]
    spec, scan = application.spec, EMPTY
    policy = docker_policy() if spec.images else None
    if spec.workspace and not is_packed and found.has_workspace:
        patterns, outputs = (*spec.exclude, *leave_out(spec)), [output.output_path for output in spec.outputs]
        scan = scan_workspace(
            spec.workspace, exclude=patterns, exclude_defaults=spec.exclude_defaults, keep_empty=outputs
        )
    notes += _scan_notes(scan)
    checks = SubmissionCheck(application, scan, problems, notes.append, settings)
    checks.all(workspace_is_packed=is_packed or not found.has_workspace)
    checks.network(network_problem(spec))
    if policy is not None:
        checks.images(policy.registry)
        checks.capabilities(policy)
    problems.refuse()
    packed = {entry.name for entry in scan.entries}
    notes += submission_notes(application, config, environ, os.path.realpath(scan.root) if packed else "", packed)
    if scan.size_bytes > config.storage.workspace_limit_bytes:
        raise too_large(scan, config.storage.workspace_limit_bytes)
    return CheckedApplication(application, scan, policy.registry if policy is not None else None, notes)


def _with_full_ids(application: ResolvedApplication, resolve: Resolve, problems: Problems) -> ResolvedApplication:
    """Return the application with the complete ids of the applications that it waits for (``after``); without those
    that do not exist, or whose name is ambiguous, which are errors."""
    after = application.spec.after
    if all(is_application_id(one.application_id) for one in after):
        return application
    found = []
    for one in after:
        try:
            found.append(replace(one, application_id=resolve(one.application_id)))
        except (NotFound, UsageError) as error:
            problems.report("application.after", problem_of(error))
    try:
        return replace(application, spec=replace(application.spec, after=tuple(found)))
    except SpecError as refused:  # two names of one application
        problems.add_error(refused)
        return application


def _check_engine(application: ResolvedApplication, engine: Engine, problems: Problems) -> list[str]:
    """Check the request with the engine; return its lines for the user."""

    def refuse(error: DlappError) -> None:
        if not isinstance(error, RequestTooLarge) or not error.field:
            problems.add_error(error)
            return
        where = _setting_of(application, error.field)
        problems.keep(RequestTooLarge(f"{application.place(where)}: {where}: {error}", where), application.line(where))

    try:
        return engine.check(application.spec, refuse)
    except DlappError as error:
        refuse(error)
        return []


def _setting_of(application: ResolvedApplication, where: str) -> str:
    """Return the key of the file that sets what is wrong: of the section, or of all containers; for the kind of GPUs,
    if none is named, that which asks for GPUs."""
    section, _, key = where.partition(".")
    sections = application.properties.sections if application.properties is not None else {}
    above = "resources" if section.startswith(("role ", "service ")) else section
    for name in (key, "gcores") if key in ("gpu", "gpu_memory") else (key,):
        for one in (section, above):
            if name in sections.get(one, {}):
                return f"{one}.{name}"
    return f"{above}.{key}" if key else section


def _scan_notes(scan: Scan) -> Iterator[str]:
    """Yield lines for the user about files that are not packed."""
    if scan.excluded:
        yield f"{_some(scan.excluded)} not packed (user_dev_workspace_exclude_defaults=false packs them)"
    yield from scan.warnings
    for path, count in scan.left_out.items():
        files = "1 file that is" if count == 1 else f"{count} files that are"
        yield f"{path} is packed without the {files} in it: it is an output_path"


def _some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others, with their verb."""
    first = ", ".join(shown(name) for name in names[:MAX_NAMED])
    more = len(names) - MAX_NAMED
    return f"{first} {f'and {more} more ' if more > 0 else ''}{'is' if len(names) == 1 else 'are'}"


def _registry_credentials(
    spec: AppSpec, policy: RegistryPolicy | None, note: Note, environ: Mapping[str, str]
) -> dict[str, RegistryCredentials]:
    if not spec.images:
        return {}
    from dlapp.launcher.registry_credentials import collect_credentials

    return collect_credentials(spec.images, policy, note, environ)


def _print_urls(application_id: ApplicationId, engine: Engine, say: Say) -> None:
    say(f"DL App ID = {application_id}")
    running, completed = engine.dashboard_urls(application_id, wait_s=PAGE_S)
    say("DL App Dashboard")
    is_one_file = completed == running and running.startswith("file:")  # written at the end
    if not is_one_file:
        say(f"* While app is running , check : {running}")
    if is_one_file or completed != running:
        say(f"* After app is completed, check : {completed}")
    say("DL App Status and stdout/stderr Log URLs")
    say(f"* dlapp-status {application_id}")
