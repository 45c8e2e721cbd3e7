"""The operations of a client that submit applications."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.client.operations import connections
from dlapp.client.operations.output import Output
from dlapp.client.operations.waiting import Control
from dlapp.cluster import ENDED
from dlapp.errors import (
    Denied,
    NotFound,
    UsageError,
)

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from typing import Unpack

    from dlapp.application.description import Snapshot, Source
    from dlapp.application.keywords import SubmitOptions
    from dlapp.application.overrides import Overrides
    from dlapp.client.application import Application
    from dlapp.client.operations.connections import AnyApplication
    from dlapp.cluster.engine import Engine
    from dlapp.launcher.origin import Origin
    from dlapp.node_policy import DockerPolicy
    from dlapp.sweep.trial import TrialSpec
    from dlapp.values.ids import ApplicationId
    from dlapp.values.launch_spec import LedgerSettings, LiveWorkspace
    from dlapp.values.spec import AppSpec

DOCKER_TIMEOUT_S = 2.0
"""Time limit for dockerd to list its networks before a submission."""


def _ignore(_: str) -> None: ...


class Callbacks(NamedTuple):
    """Functions that a submission calls; see `Submitter.submit`."""

    say: Callable[[str], None] = _ignore
    note: Callable[[str], None] = _ignore
    progress: Callable[[int, int], None] | None = None


class Submitter(Output, Control):
    """Submitter of applications, new ones and again."""

    def application(self, text: str) -> Application:
        """Return the application for ``text``. Raises the errors of `resolve`, and NotFound for an unknown id."""
        from dlapp.client.application import Application

        application = Application(self, self.resolve(text))
        application.status()
        return application

    def submit(
        self,
        source: str | os.PathLike[str] | Snapshot | AppSpec | None = None,
        *,
        env: Mapping[str, str] | None = None,
        role_env: Mapping[str, Mapping[str, str]] | None = None,
        args: Sequence[str] | None = None,
        overrides: Mapping[str, object] | Overrides | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> Application:
        """Check, pack and submit an application; it runs independently of the caller.

        Args:
            source: the path of a properties file, what that was at another moment, or a spec. None: the application is
                described by keywords. The paths of a spec and of keywords are as in a file that lies in the working
                directory: relative ones begin there.
            env: variables of the program; they are added to those of a file, and override equal names.
            role_env: with a spec: role -> variables for its containers only, overriding equal names.
            args: arguments of the program, instead of a file's user_shell_args.
            overrides: values that override a file's, such as ``{"resources.containers": 2}``.
            say: called with the lines that ``dlapp-launcher`` prints.
            note: called with notices for the user.
            progress: called with the packed bytes of the workspace and the total.
            fields: the application, instead of a source: every key of ``[application]`` and ``[resources]``, some of
                them by shorter names (``workspace``, ``script``, ``exclude``), ``inputs``, ``outputs``, ``overwrite``,
                ``caches``, ``links``, ``roles``, ``services``, ``checkpoint`` and ``sweep``; docs/python.md has them.

        Raises:
            FileRefused: the file or spec has errors; the message lists all of them.
            SpecError: a keyword, an argument or a variable has an invalid value.
            UsageError: the resource request fits nowhere, args or overrides are given with a spec, an output may not be
                replaced, or the workspace is too large.
            NotFound: input is missing.
        """
        self.engine.prepare()
        if source is not None:
            _check_variables(source, env, role_env, args)
        described, own_overrides = _described(source, fields, env, role_env, args, overrides)
        return self._launch(described, self.engine, own_overrides, Callbacks(say, note, progress))

    def resume(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Application:
        """Submit an application that continues from the newest checkpoint of an ended one.

        Args:
            application_id: the id of the ended one; the caller must own it.
            source: the path of a properties file; None to reuse the recorded application, including the workspace.
            options: see `submit`. The values of variables are not recorded, so all of the application's variables must
                be in ``env``, or in the file.

        Raises:
            NotFound: there is no such application, no complete checkpoint of it, or no packed workspace any more.
            Denied: it is owned by another user.
            UsageError: it has not ended, has no checkpoints, another application already continues from them, or a
                variable has no value. See also `submit`.
        """
        return self._resubmit(application_id, source, options, resumes=True)

    def again(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Application:
        """Submit an application again, from its beginning; it need not have ended.

        Args:
            application_id: the id of the caller's own application.
            source: the path of a properties file; None to reuse the recorded application, including the workspace.
            options: see `resume`, also for errors.
        """
        return self._resubmit(application_id, source, options, resumes=False)

    def again_as_trial(
        self, application_id: AnyApplication, number: int, **options: Unpack[SubmitOptions]
    ) -> Application:
        """Submit the program of a sweep once, with the parameters of one of its trials; the output goes beside those
        of the sweep, to ``TARGET/trial-NUMBER``, unless the overrides name another target.

        Args:
            application_id: the id of the caller's own sweep; it need not have ended.
            number: the number of the trial.
            options: see `resume`, also for errors.

        Raises:
            NotFound: there is no such application, or trial.
            UsageError: it has no sweep.
        """
        trial = self.sweep(application_id).trial(number)
        return self._resubmit(application_id, None, options, resumes=False, trial=trial)

    def _resubmit(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None,
        options: SubmitOptions,
        *,
        resumes: bool,
        trial: TrialSpec | None = None,
    ) -> Application:
        own_overrides = _overrides_of(options.get("overrides"), options.get("env"), options.get("args"))
        calls = Callbacks(options.get("say", _ignore), options.get("note", _ignore), options.get("progress"))
        application_id = self._id(application_id)
        engine = self._engine_of(application_id)
        origin = self._origin_of(application_id, engine, resumes=resumes)
        if source is not None:
            return self._launch(os.fspath(source), engine, own_overrides, calls, origin)
        if digest := origin.submission.workspace_digest:
            try:
                archive = engine.find_archive(digest)
            except NotFound as error:
                raise NotFound(f"{error}; give FILE, whose workspace is packed") from error
            origin = origin._replace(archive=archive)
        if trial is None:
            described, own_overrides = origin.recorded_source(own_overrides)
        else:
            described, own_overrides = origin.recorded_trial(trial, own_overrides)
        return self._launch(described, engine, own_overrides, calls, origin)

    def _origin_of(self, application_id: ApplicationId, engine: Engine, *, resumes: bool) -> Origin:
        """Return what a new submission takes from an earlier one.

        Raises:
            Denied: it is owned by another user.
            UsageError: it cannot be resumed.
        """
        from dlapp.launcher.origin import Origin

        view = engine.view(application_id).json
        self._check_owner(str(application_id), connections.caller())
        recorded = engine.submission(application_id)
        if recorded.live is not None:
            raise UsageError(f"{application_id} is a dlapp-shell; open another one")
        engine.prepare()  # only now: it may remove an expired history
        stored = tuple(one["target"] if one["committed"] else one["partial"] for one in view["outputs"])
        origin = Origin(str(application_id), recorded, resumes, outputs=tuple(filter(None, stored)))
        if resumes:
            if view["state"] not in ENDED:
                raise UsageError(f"{application_id} is {view['state']}: only what has ended can be resumed")
            self._refuse_if_resumed(engine, origin)
        return origin

    def _refuse_if_resumed(self, engine: Engine, origin: Origin) -> None:
        """Refuse to resume from checkpoints that an application which has not ended continues from. Raises
        UsageError.
        """
        for other in (one.json for one in engine.views(limit=0)):
            if other["state"] in ENDED or not (resumed := other.get("resumed_from")):
                continue
            if _checkpoints_of(engine, str(other["application_id"]), str(resumed)) == origin.checkpoints_of:
                text = f"{other['application_id']} continues from the same checkpoints, and is {other['state']}"
                text += "; wait for its end, or end it with dlapp-softkill"
                raise UsageError(text)

    def _launch(
        self,
        described: Source,
        engine: Engine,
        own_overrides: Overrides,
        calls: Callbacks,
        origin: Origin | None = None,
        live: LiveWorkspace | None = None,
        ledger: LedgerSettings | None = None,
    ) -> Application:
        from dlapp.client.application import Application
        from dlapp.launcher.submit import launch

        application_id = launch(
            described,
            self.config,
            engine,
            say=calls.say,
            note=calls.note,
            progress=calls.progress,
            overrides=own_overrides,
            leave_out=lambda spec: self._shell_input_patterns(spec, calls.note),
            network_problem=self._network_problem,
            resolve=self.resolve_text,
            docker_policy=self._docker_policy,
            origin=origin,
            live=live,
            ledger=ledger,
        )
        return Application(self, application_id)

    def submit_live(
        self,
        spec: AppSpec,
        live: LiveWorkspace,
        *,
        file: str,
        env: Mapping[str, str],
        role_env: Mapping[str, Mapping[str, str]],
        ledger: LedgerSettings | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Application:
        """Submit an application to this machine that runs in the user's own directory instead of in a copy.

        Args:
            spec: the application, with an absolute workspace; it has no outputs.
            live: the directory.
            file: the path of its properties file, for errors.
            env, role_env, note: see `submit`.
            ledger: see `Secrets`.

        Raises:
            UsageError: this client's engine is a cluster. See also `submit`.
        """
        from dlapp.application.description import UnresolvedSpec
        from dlapp.application.overrides import NO_OVERRIDES

        self.engine.prepare()
        source = UnresolvedSpec(spec, env, role_env, name=file)
        calls = Callbacks(_ignore, note, None)
        return self._launch(source, self.engine, NO_OVERRIDES, calls, live=live, ledger=ledger)

    def plan_json(
        self,
        source: str | os.PathLike[str],
        *,
        overrides: Overrides | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Return what a submission of a properties file would pack, request and wait for now; docs/json.md has the
        fields. Nothing is submitted.

        Args:
            source: the path of the file.
            overrides: values that override the file's.
            note: called with what is not packed because a shell copied it.

        Raises:
            FileRefused: the file has errors; the message lists all of them.
            UsageError: the resource request can never be met, or the workspace is too large.
        """
        from dlapp.application.overrides import NO_OVERRIDES
        from dlapp.launcher.plan import plan_submission

        return plan_submission(
            os.fspath(source),
            self.config,
            self.engine,
            overrides=overrides or NO_OVERRIDES,
            leave_out=lambda spec: self._shell_input_patterns(spec, note),
            network_problem=self._network_problem,
            resolve=self.resolve_text,
            docker_policy=self._docker_policy,
        )

    def _shell_input_patterns(self, spec: AppSpec, note: Callable[[str], None]) -> Sequence[str]:
        """Return gitignore patterns for the input that dlapp-shell copied into the workspace."""
        from dlapp.client.command_session import records_below
        from dlapp.task.data.input_record import as_pattern, recorded_paths

        paths = recorded_paths(records_below(self.state_path), spec)
        for one in paths:
            note(f"{one} is not packed: dlapp-shell copied it, and the run fetches its own")
        return [as_pattern(one) for one in paths]

    def _network_problem(self, spec: AppSpec) -> str:
        """Return why an application's network is not available here; empty if it is.

        Raises:
            ConfigError: node.yaml of this machine is invalid.
        """
        if self.config.cluster != "local":
            return ""
        from dlapp.node_policy import node_policy

        policy = node_policy()  # with an invalid file no program runs, with or without Docker
        in_docker = [role for role in spec.roles if spec.image_of(role) is not None]
        networks = list(dict.fromkeys(filter(None, map(spec.network_of, in_docker))))
        if not networks:
            return ""
        from dlapp.net.dockerd import DockerRefused, DockerSilent
        from dlapp.runtime.docker.client import DockerClient
        from dlapp.runtime.docker.container import forbidden_network, missing_network

        dockerd = DockerClient(self.config.runtime.docker.host, DOCKER_TIMEOUT_S)
        for network in networks:
            try:
                missing = missing_network(dockerd, network)
            except (DockerRefused, DockerSilent):
                missing = ""  # dockerd may be running by the time the application starts
            if problem := missing or forbidden_network(policy.docker, network):
                return problem
        return ""

    def _docker_policy(self) -> DockerPolicy | None:
        """Return what the operator of the machine that runs the containers allows; None if it is not known here."""
        if self.config.cluster != "local":
            return None
        from dlapp.node_policy import node_policy

        return node_policy().docker


def _check_variables(
    source: object,
    env: Mapping[str, str] | None,
    role_env: Mapping[str, Mapping[str, str]] | None,
    args: Sequence[str] | None,
) -> None:
    """Reject invalid variables and arguments that are given with a file or a spec."""
    if not env and args is None and role_env is None:
        return
    from dlapp.application.keywords import check_texts
    from dlapp.values.spec import AppSpec

    check_texts(args or (), env or {})
    if role_env is not None and not isinstance(source, AppSpec):
        raise UsageError("role_env is for a spec; a file has env.NAME in [role NAME]")
    for variables in (role_env or {}).values():
        check_texts((), variables)


def _described(
    source: str | os.PathLike[str] | Snapshot | AppSpec | None,
    fields: dict[str, Any],
    env: Mapping[str, str] | None,
    role_env: Mapping[str, Mapping[str, str]] | None,
    args: Sequence[str] | None,
    overrides: Mapping[str, object] | Overrides | None,
) -> tuple[Source, Overrides]:
    """Return the description of an application, and what overrides it; the arguments are those of `Submitter.submit`.

    Raises:
        UsageError: arguments that exclude each other.
    """
    from dlapp.application.overrides import NO_OVERRIDES
    from dlapp.values.spec import AppSpec

    if source is None:
        from dlapp.application.build import Keywords

        if overrides is not None:
            raise UsageError("overrides are for a properties file; give the keywords themselves")
        return Keywords(fields, env or {}, args or ()), NO_OVERRIDES
    if fields:
        raise UsageError(f"{', '.join(fields)}: keywords describe an application without a file or a spec")
    if isinstance(source, AppSpec):
        from dlapp.application.description import UnresolvedSpec

        if args is not None or overrides is not None:
            raise UsageError("args and overrides are for a file; change a spec with dlapp.replace")
        return UnresolvedSpec(source, env or {}, role_env or {}), NO_OVERRIDES
    return os.fspath(source) if isinstance(source, os.PathLike) else source, _overrides_of(overrides, env, args)


def _overrides_of(
    overrides: Mapping[str, object] | Overrides | None, env: Mapping[str, str] | None, args: Sequence[str] | None
) -> Overrides:
    """Return the overrides of a file that the arguments of `Client.submit` describe."""
    from dlapp.application.overrides import OptionNames, Overrides

    if env or args is not None:
        from dlapp.application.keywords import check_texts

        check_texts(args or (), env or {})
    if isinstance(overrides, Overrides):
        return overrides
    settings = {key: str(value) for key, value in (overrides or {}).items()}
    words = None if args is None else tuple(args)
    return Overrides(settings, env or {}, words, OptionNames("overrides", "env", "args"))


def _checkpoints_of(engine: Engine, application_id: str, resumed: str) -> str:
    """Return the application whose checkpoints an application continues from.

    Args:
        engine: the engine of both.
        application_id: the id of the continuing one. On a cluster, what was submitted of it cannot be read before it
            starts.
        resumed: the application that it was resumed from.
    """
    from dlapp.values.ids import ApplicationId

    for one in (application_id, resumed):
        with contextlib.suppress(NotFound, Denied, UsageError):
            if found := engine.submission(ApplicationId.from_text(one)).checkpoints_of:
                return found
    return resumed
