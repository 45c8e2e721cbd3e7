"""Resubmission of an application: from its recorded submission, or from another file.

The record contains the effective properties file, without the values of variables, the resulting spec, and the digest
of the packed workspace. A resumed application continues in the checkpoint directory of the first one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dlapp.application.description import RecordedFile, ResolvedApplication, Source, UnresolvedSpec
from dlapp.application.overrides import Overrides, quoted_words
from dlapp.application.properties import Properties, parse_properties
from dlapp.errors import NotFound, UsageError
from dlapp.locations import HdfsPlace, shown
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.store import open_store
from dlapp.sweep.spec import SweepSpec
from dlapp.sweep.trial import TrialSpec
from dlapp.value import replace
from dlapp.values.program.placeholders import APP_ID
from dlapp.values.spec import AppSpec, CheckpointSpec, RoleSpec, Submission, gangs_of


class Origin(NamedTuple):
    """The application that is submitted again.

    Args:
        application_id: its id.
        submission: what was submitted.
        resumes: whether the new one continues from its checkpoints, or from its trials.
        archive: location of its packed workspace; empty if the new one has its own workspace.
        outputs: locations of its output, committed or kept.
    """

    application_id: str
    submission: Submission
    resumes: bool
    archive: str = ""
    outputs: tuple[str, ...] = ()

    @property
    def checkpoints_of(self) -> str:
        """Return the id of the application that owns the checkpoint directory; empty to start without checkpoints."""
        return self.submission.checkpoints_of or self.application_id if self.resumes else ""

    def recorded_source(self, overrides: Overrides) -> tuple[Source, Overrides]:
        """Return the recorded source, which replaces a properties file, and the overrides for it.

        Raises:
            UsageError: no properties file is recorded, and overrides are given.
        """
        recorded = self.submission
        if recorded.properties:
            return RecordedFile(recorded.file, recorded.properties.encode()), overrides
        if overrides.settings or overrides.args is not None:
            raise UsageError(
                f"{self.application_id} has no properties file on record, so {overrides.names.settings} and "
                f"{overrides.names.args} need FILE"
            )
        names = {name: overrides.env[name] for name in recorded.spec.env if name in overrides.env}
        roles = {
            role.name: {name: overrides.env[name] for name in role.env if name in overrides.env}
            for role in recorded.spec.roles
            if role.env
        }
        spec = _with_open_targets(recorded.spec, self.application_id)
        return UnresolvedSpec(spec, names, roles, workspace_is_packed=bool(self.archive)), Overrides()

    def recorded_trial(self, trial: TrialSpec, overrides: Overrides) -> tuple[Source, Overrides]:
        """Return the recorded source as a run of one trial without its sweep, and the overrides for it.

        One container runs the program once, with the parameters of the trial as variables and in its arguments. Its
        output goes beside the sweep's, which stays. Given overrides win.

        Args:
            trial: the trial.
            overrides: values given by the user.

        Raises:
            UsageError: see `recorded_source`.
        """
        spec = self.submission.spec
        role = spec.main_roles[0]
        given = Overrides(
            settings=overrides.settings,
            env={**trial.parameters, **overrides.env},
            args=overrides.args,
            names=overrides.names,
        )
        source, given = self.recorded_source(given)
        targets = {one: _target_of_trial(one.target, trial) for one in spec.outputs}
        if isinstance(source, UnresolvedSpec):
            one = replace(
                spec,
                sweep=None,
                roles=tuple(replace(each, **_of_trial(each, trial)) if each is role else each for each in spec.roles),
                command=trial.arguments(spec.command),
                args=trial.arguments(spec.args),
                outputs=tuple(replace(output, target=target) for output, target in targets.items()),
                env=tuple(sorted({*spec.env, *trial.parameters})),
            )
            return replace(source, spec=one, env={**trial.parameters, **source.env}), given
        assert isinstance(source, RecordedFile)
        recorded = parse_properties(source.data, source.path)
        sections = {section: settings for section, settings in recorded.sections.items() if section != "sweep"}
        settings = {f"{output.section}.hdfs": target for output, target in targets.items()}
        settings |= _settings_of_trial(spec, role, trial)
        args = trial.arguments(spec.args) if spec.args else None
        return (
            replace(source, data=Properties(path=source.path, sections=sections).to_text().encode()),
            replace(given, settings=settings | dict(given.settings), args=args if given.args is None else given.args),
        )

    def continued(self, application: ResolvedApplication, overrides: Overrides) -> ResolvedApplication:
        """Return an application as the continuation of this one.

        Args:
            application: as it was read.
            overrides: the options of the command, for messages.

        Raises:
            UsageError: a variable is missing, one of the two has no checkpoints, or they do not fit together.
            NotFound: there is no complete checkpoint.
        """
        self.check_variables(application, overrides)
        return replace(application, spec=self.checked_spec(application.spec, application.hdfs))

    def check_variables(self, application: ResolvedApplication, overrides: Overrides) -> None:
        """Refuse an application that lacks variables of the recorded one. Raises UsageError, which names them."""
        missing = set(self.submission.spec.env) - application.env.keys()
        for role in self.submission.spec.roles:
            missing |= set(role.env) - application.env.keys() - application.role_env.get(role.name, {}).keys()
        if missing:
            names = sorted(missing)
            raise UsageError(
                f"{self.application_id} had the variables {', '.join(names)}, whose values are not recorded: give each "
                f"by {overrides.names.env} {names[0]}=VALUE, or FILE"
            )

    def checked_spec(self, spec: AppSpec, hdfs: HdfsPlace | None) -> AppSpec:
        """Return the new application's spec, which continues in the checkpoint directory if it resumes.

        Raises:
            UsageError: one of the two has no checkpoints, or they do not fit together.
            NotFound: there is no complete checkpoint.
        """
        if not self.resumes:
            return spec
        before = self.submission.spec
        if before.sweep is not None:
            return self._checked_sweep(before.sweep, spec)
        if before.checkpoint is None:
            raise UsageError(
                f"{self.application_id} has no [checkpoint] and no [sweep], so nothing can be resumed; --again runs it "
                "anew"
            )
        if spec.checkpoint is None:
            raise UsageError(f"[checkpoint] is missing, and {self.application_id} is to be resumed from one")
        checkpoint = replace(spec.checkpoint, target=before.checkpoint.target)
        if checkpoint.is_of_every_index != before.checkpoint.is_of_every_index:
            which = "each container" if before.checkpoint.is_of_every_index else "one container"
            raise UsageError(f"checkpoint.role: {self.application_id} has checkpoints of {which}, keep it so")
        if checkpoint.is_of_every_index and (spec.containers, len(spec.gangs())) != (
            before.containers,
            len(before.gangs()),
        ):
            raise UsageError(
                f"{self.application_id} has checkpoints of each of {before.containers} containers "
                f"(checkpoint.role=all), so it cannot be resumed with {spec.containers}, or with another gang"
            )
        place = f"{checkpoint.target.rstrip('/')}/{self.checkpoints_of}"
        if not _has_complete(place, checkpoint, spec, hdfs):
            state = ""
            if self.outputs:
                state = f"its output at {shown(self.outputs[0])} may have the state: name it in [from_hdfs]; "
            raise NotFound(f"{shown(place)} has no whole checkpoint; {state}--again {self.application_id} runs it anew")
        return replace(spec, checkpoint=checkpoint)

    def _checked_sweep(self, before: SweepSpec, spec: AppSpec) -> AppSpec:
        """Return the spec of a sweep that continues this one; its output replaces this one's."""
        if spec.sweep is None:
            raise UsageError(f"[sweep] is missing, and {self.application_id} is a sweep that is to be resumed")
        from dlapp.sweep.trial import first_difference

        numbers = range(min(before.trials, spec.sweep.trials))
        if (number := first_difference(before, spec.sweep, numbers)) is not None:
            raise UsageError(
                f"trial {number} has other parameters than in {self.application_id}: a sweep that is resumed can have "
                "more trials at its end, and the trials before them stay as they are"
            )
        former = {one.name: one for one in self.submission.spec.outputs}
        outputs = tuple(
            replace(one, overwrite=True) if one.name in former and former[one.name].target == one.target else one
            for one in spec.outputs
        )
        return replace(spec, outputs=outputs)


def _target_of_trial(target: str, trial: TrialSpec) -> str:
    """Return the target of a trial that runs by itself: beside the directory that has all trials of the sweep."""
    return f"{target.rstrip('/').rpartition('/')[0]}/trial-{trial.number}"


def _of_trial(role: RoleSpec, trial: TrialSpec) -> dict[str, Any]:
    """Return the fields of a role that runs one trial."""
    words = {"command": role.command, "args": role.args}
    return {"instances": 1, **{name: trial.arguments(one) for name, one in words.items() if one is not None}}


def _settings_of_trial(spec: AppSpec, role: RoleSpec, trial: TrialSpec) -> dict[str, str]:
    """Return the settings of a properties file for a role that runs one trial."""
    section, fields = spec.section_of(role), _of_trial(role, trial)
    settings = {f"{section}.{'containers' if section == 'resources' else 'instances'}": str(fields.pop("instances"))}
    settings |= {f"{section}.{key}": quoted_words(words) for key, words in fields.items()}
    return settings | ({"application.command": quoted_words(trial.arguments(spec.command))} if spec.command else {})


def _with_open_targets(spec: AppSpec, application_id: str) -> AppSpec:
    """Return a recorded spec with ``{app_id}`` in its targets again, in place of the application's id."""

    def opened(target: str) -> str:
        return target.replace(application_id, f"{{{APP_ID}}}")

    outputs = tuple(replace(one, target=opened(one.target)) for one in spec.outputs)
    checkpoint = spec.checkpoint and replace(spec.checkpoint, target=opened(spec.checkpoint.target))
    return replace(spec, outputs=outputs, checkpoint=checkpoint)


def _has_complete(place: str, checkpoint: CheckpointSpec, spec: AppSpec, hdfs: HdfsPlace | None) -> bool:
    """Return whether there is a checkpoint to continue from."""
    if not checkpoint.is_of_every_index:
        return bool(_complete_at(place, hdfs))
    first, indexes = 0, dict[str, range]()
    for role in spec.roles:
        indexes[role.name] = range(first, first + role.instances)
        first += role.instances
    gangs = gangs_of(spec.roles, spec.gang)
    groups = [[index for role in gang for index in indexes[role.name]] for gang in gangs]
    for group in groups or [[index] for index in range(first)]:
        common: set[int] | None = None
        for index in group:
            found = _complete_at(f"{place}/{index}", hdfs)
            common = found if common is None else common & found
            if not common:
                break
        if common:
            return True
    return False


def _complete_at(place: str, hdfs: HdfsPlace | None) -> set[int]:
    with open_store(place, hdfs) as store:
        return set(Checkpoints(store, 1, lambda _: None).complete())
