"""Resolution of the draft of a spec: paths, locations, and the defaults of this machine and engine.

A text that begins with ``hdfs:``, and on a cluster every path, is a location on HDFS; others are described in
`dlapp.application.paths`.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence

from dlapp.application.paths import (
    SCHEME,
    WILD,
    begins_at,
    for_input,
    overlap,
    own_path,
    refuse_references,
    resolve_location,
    seen,
)
from dlapp.application.properties import Line, Problems
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.errors import problem_of
from dlapp.locations import FILE, HDFS, HdfsPlace, is_on_hdfs, local_path
from dlapp.storage.glob import split_pattern
from dlapp.sweep.spec import Sampler
from dlapp.system.files import is_inside
from dlapp.system.text import shown
from dlapp.values.rules import changed
from dlapp.values.spec import (
    AppSpec,
    CheckpointSpec,
    InputSpec,
    OutputSpec,
    RoleSpec,
    check_inside_workspace,
    needing_host_network,
)

TRIALS = "trials"
"""Name of the directory that has those of the trials of a sweep, in the place of its output."""
_GLOB = re.compile(r"[*?]|\[[^/]+\]|\{[^/]*,[^/]*\}")


class Resolver:
    """Replacement of what the user wrote by paths, locations and settings of this machine and engine.

    Errors are collected, and it continues with the other values; what has an error stays as the user wrote it.

    Args:
        file: absolute path of the properties file; relative paths start at its directory.
        hdfs: the HDFS of the engine, as the user of the application.
        problems: collects the errors.
        notes: lines for the user are added to it.
        grace_is_given: the user gave ``kill_grace``; else its default is lowered to the operator's limit.
    """

    def __init__(
        self,
        file: str,
        config: Config,
        engine: EngineInfo,
        hdfs: HdfsPlace | None,
        problems: Problems,
        notes: list[str],
        *,
        grace_is_given: bool,
    ) -> None:
        self.script_may_be_missing = self.workspace_is_packed = False
        self._file, self._directory = file, os.path.dirname(file)
        self._config, self._engine, self._hdfs = config, engine, hdfs
        self._problems, self._notes, self._grace_is_given = problems, notes, grace_is_given
        self._known = frozenset(problems.named)

    def resolve(self, spec: AppSpec) -> AppSpec:
        """Return a draft with all paths resolved; its rules are not checked."""
        workspace = self._workspace(spec.workspace)
        script = self._script("application.user_shell_script", spec.script, workspace) if spec.script else ""
        roles = tuple(self._role(role, workspace) for role in spec.roles)
        inputs = tuple(self._input(one) for one in spec.inputs)
        outputs = tuple(self._output(one, workspace, in_sweep=spec.sweep is not None) for one in spec.outputs)
        placed = [one for one in outputs if not self._has_error(one.section)]
        self._check_overlaps([one for one in inputs if not self._has_error(one.section)], placed, workspace)
        self._check_caches(spec)
        checkpoint = self._checkpoint(spec.checkpoint, spec.outputs, placed) if spec.checkpoint else None
        if spec.sweep is not None:
            self._check_sweep(spec)
        return changed(
            spec,
            workspace=workspace or "",
            script=script,
            roles=roles,
            inputs=inputs,
            outputs=outputs,
            checkpoint=checkpoint,
            tensorboard=self._tensorboard(spec, placed, checkpoint),
            network=self._network(spec),
            kill_grace_s=self._kill_grace_s(spec.kill_grace_s),
        )

    # ---- [application] ----

    def _workspace(self, text: str) -> str | None:
        """Return the path of the workspace; None after an error, or if there is none."""
        where = "application.user_dev_workspace_path"
        if not text:
            return None
        try:
            path = own_path(text, self._directory)
        except ValueError as problem:
            self._report(where, problem)
            return None
        if self.workspace_is_packed:
            return path
        if not os.path.isdir(path):
            what = "is not a directory" if os.path.lexists(path) else "there is no such directory"
            self._report(where, f"{seen(path)}: {what}")
            return None
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
            self._report(where, f"{seen(path)}: may not be read")
            return None
        return path

    def _script(self, where: str, text: str, workspace: str | None) -> str:
        script = os.path.normpath(text)
        if not self._is_inside_workspace(where, text) or workspace is None or self.workspace_is_packed:
            return script
        path = os.path.join(workspace, script)
        if not os.path.lexists(path):
            if not self.script_may_be_missing:
                problem = f"{seen(path)}: there is no such file{_script_hint(text, workspace)}"
                self._report(where, problem)
        elif not is_inside(os.path.realpath(path), os.path.realpath(workspace)):
            problem = f"{shown(text)} leads out of the workspace, to {seen(os.path.realpath(path))}"
            self._report(where, problem)
        elif not os.path.isfile(path):
            self._report(where, f"{seen(path)}: is not a file")
        return script

    def _role(self, role: RoleSpec, workspace: str | None) -> RoleSpec:
        if role.script is None:
            return role
        return changed(role, script=self._script(f"{role.section}.script", role.script, workspace))

    def _check_caches(self, spec: AppSpec) -> None:
        for one in spec.caches:
            where = f"application.cache.{one.name}"
            if not self._config.storage.payload_cache_limit_bytes:
                self._report(where, "is not possible here: storage.payload_cache_limit is 0")
            if spec.docker_image is None:
                problem = f"without docker_image nothing is mounted at {one.path}; {one.variable} has the directory"
                self._notes.append(f"cache.{one.name}: {problem}")

    def _tensorboard(self, spec: AppSpec, outputs: Sequence[OutputSpec], checkpoint: CheckpointSpec | None) -> str:
        """Return the directory that TensorBoard reads: the named one, else the first output, else the checkpoint's;
        empty if TensorBoard is not wanted."""
        where = "application.tensorboard"
        wanted: str | bool = spec.tensorboard  # of a file, it may be true
        if isinstance(wanted, str):
            return os.path.normpath(wanted) if wanted and self._is_inside_workspace(where, wanted) else wanted
        if outputs or (checkpoint is not None and not self._has_error("checkpoint")):
            return outputs[0].output_path if outputs or checkpoint is None else checkpoint.path
        if not spec.outputs and spec.checkpoint is None and not spec.is_service and spec.sweep is None:
            self._report(where, "is true, and there is no [to_hdfs]; name a directory of the workspace")
            return ""
        return "."  # of an output that has an error, or that there cannot be

    def _network(self, spec: AppSpec) -> str | None:
        where, network, roles = "application.network", spec.network, spec.roles
        all_serve = all(role.keep_running for role in roles)
        with_ports = needing_host_network(roles, spec.docker_image, services=all_serve)
        if with_ports is not None:
            if network not in (None, "host"):
                problem = f"is {network}; the ports of role {with_ports.name} can be reached only with host"
                self._report(where, problem)
            return "host"
        if spec.docker_image or any(role.docker_image for role in roles):
            return network or self._config.runtime.docker.network
        if network not in (None, "host"):
            problem = f"is {network}, but without docker_image the script is a process of the machine, with its network"
            self._report(where, problem)
        return None

    def _kill_grace_s(self, grace_s: float) -> float:
        most_s = self._config.runtime.kill_grace_max_s
        if not self._grace_is_given:
            return min(grace_s, most_s)
        if grace_s > most_s:
            problem = f"is {grace_s:g} s, the maximum allowed here is {most_s:g} s (runtime.kill_grace_max)"
            self._report("application.kill_grace", problem)
        return grace_s

    # ---- [from_hdfs], [to_hdfs], [checkpoint] ----

    def _input(self, one: InputSpec) -> InputSpec:
        """Return an input with its locations; what has an error stays as it is, so that its rules are checked."""
        section, sources = one.section, []
        for text in one.sources:
            location = text
            try:
                location = self._location(text, pattern=True)
                if location.startswith((FILE, HDFS)):
                    split_pattern(self._path(location))
            except ValueError as problem:
                self._report(f"{section}.hdfs", problem)
            sources.append(location)
        path = one.input_path
        if self._is_inside_workspace(f"{section}.input_path", path):
            path = os.path.normpath(path)
        return changed(one, sources=tuple(sources), input_path=path)

    def _output(self, one: OutputSpec, workspace: str | None, *, in_sweep: bool) -> OutputSpec:
        """Return an output with its location; what has an error stays as it is, so that its rules are checked."""
        where, path = f"{one.section}.output_path", one.output_path
        target = self._target(one.section, one.target, "output goes")
        if self._is_inside_workspace(where, path):
            if _GLOB.search(path):
                self._report(where, f"{shown(path)} is a pattern; name the directory that holds the output")
            elif os.path.normpath(path) == ".":
                problem = f"{shown(path)} is the workspace itself; name a directory in it that holds nothing but output"
                self._report(where, problem)
            elif workspace and not self.workspace_is_packed:
                there = os.path.join(workspace, path)
                if os.path.lexists(there) and not os.path.isdir(there):
                    self._report(where, f"{seen(os.path.normpath(there))}: is not a directory")
            path = os.path.normpath(path)
        if target and in_sweep and posixpath.basename(target.rstrip("/")) != TRIALS:
            target = f"{target.rstrip('/')}/{TRIALS}"  # it has a directory for each trial
        return changed(one, output_path=path, target=target)

    def _target(self, section: str, text: str, what_goes: str) -> str:
        """Return the location that a section writes to; after an error, which is noted, the text."""
        try:
            if not text:
                raise ValueError("is empty")
            if set("*?") & set(text):
                raise ValueError(f"{shown(text)} is a pattern; {what_goes} to one place")
            return self._location(text, pattern=False)
        except ValueError as problem:
            self._report(f"{section}.hdfs", problem)
            return text

    def _checkpoint(
        self, one: CheckpointSpec, wanted: Sequence[OutputSpec], outputs: Sequence[OutputSpec]
    ) -> CheckpointSpec:
        """Return the checkpoints with their location; without one they are beside the first output.

        Args:
            one: the checkpoints.
            wanted: all outputs.
            outputs: those without an error.
        """
        self._is_inside_workspace("checkpoint.path", one.path)
        target = one.target
        if target:
            target = self._target("checkpoint", target, "checkpoints go")
        elif outputs:
            target = f"{outputs[0].target.rstrip('/')}.checkpoints"
        elif wanted:
            self._problems.named.add("checkpoint.hdfs")  # the error of the output is to be corrected
        else:
            self._report("checkpoint.hdfs", "is missing, and without [to_hdfs] there is no place beside an output")
        for output in outputs:
            if target and is_inside(target, output.target):
                what = f"is in the target of [{output.section}], which is replaced as a whole"
                self._report("checkpoint.hdfs", f"{shown(target)} {what}")
        return changed(one, path=os.path.normpath(one.path) if one.path else "", target=target)

    def _has_error(self, section: str) -> bool:
        return any(one == section or one.startswith(f"{section}.") for one in self._problems.named)

    def _report(self, where: str, problem: object) -> None:
        """Add an error, unless the key had one before: then this may only follow from it."""
        if where not in self._known:
            self._problems.report(where, problem)

    def _check_sweep(self, spec: AppSpec) -> None:
        assert spec.sweep is not None
        if spec.sweep.sampler is Sampler.OPTUNA and (problem := self._optuna_problem()):
            self._report("sweep.sampler", problem)

    def _optuna_problem(self) -> str:
        """Return why an ApplicationMaster cannot import Optuna; empty if no reason is known."""
        if self._engine.paths_on_hdfs:
            if self._config.yarn.python_archive:
                return ""
            return "needs yarn.python_archive, an archive of Python with optuna and numpy for the ApplicationMaster"
        import importlib.util

        if importlib.util.find_spec("optuna") is not None:
            return ""
        return "needs Optuna, which is not installed here: pip install optuna numpy, or dlapp with the extra optuna"

    # ---- locations ----

    def _location(self, text: str, *, pattern: bool) -> str:
        """Return the location of a path: on HDFS or local, by its scheme, else by the engine's default. Raises
        ValueError."""
        match = SCHEME.match(text)
        scheme = match[1].lower() if match else ""
        if scheme not in ("hdfs", "viewfs") and not self._engine.paths_on_hdfs:
            return resolve_location(text, self._directory, self._config.local.fs_root, pattern=pattern)
        if scheme == "file":
            return self._shared_location(text, pattern=pattern)
        refuse_references(text)
        if scheme not in ("", "hdfs", "viewfs"):
            return for_input(scheme, text, "a path or hdfs://", pattern=pattern)
        if self._hdfs is None:
            raise ValueError(f"{seen(text)} is on HDFS, and {self._engine.no_hdfs}")
        if text.startswith("~"):
            if text[1:2] not in ("", "/"):
                raise ValueError(f"{shown(text)}: on HDFS only ~/ is known, your home directory there; write the path")
            text = text[2:]
        location = self._hdfs.resolve(scheme + text[len(scheme) :])
        self._hdfs.of(location).path(location)
        return location

    def _shared_location(self, text: str, *, pattern: bool) -> str:
        """Return the location of a path that is the same on all nodes. Raises ValueError: it has no such scheme."""
        shared = self._config.storage.shared_paths
        location = resolve_location(text, "/", "/", pattern=pattern) if pattern else ""
        if not any(is_inside(local_path(location), one) for one in shared if location):
            there = "it can be a path or hdfs://"
            if pattern and shared:
                there += f", or file:// in {' or '.join(shared)} (storage.shared_paths)"
            raise ValueError(f"there is no storage for file:// on a cluster, {there}")
        return location

    def _path(self, location: str) -> str:
        """Return the path of a location on its file system."""
        if self._hdfs is None or location.startswith(FILE):
            return local_path(location)
        return self._hdfs.of(location).path(location)

    def _system(self, location: str) -> str:
        """Return the prefix before paths on the file system of a location."""
        if self._hdfs is None or not is_on_hdfs(location):
            return location.partition("://")[0] + "://"
        return self._hdfs.of(location).location

    def _is_inside_workspace(self, where: str, path: str) -> bool:
        try:
            check_inside_workspace(where, path)
            refuse_references(path)
        except ValueError as refused:
            self._report(where, problem_of(refused))
            return False
        return True

    def _check_overlaps(
        self, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], workspace: str | None
    ) -> None:
        """Refuse an output that would replace files of the application, or another output."""
        for place, output in enumerate(outputs):
            target, system = self._path(output.target), self._system(output.target)
            for one in inputs:
                for source in one.sources:
                    if self._system(source) != system:
                        continue
                    if output.overwrite and begins_at(self._path(source), target):
                        continue  # the output of an earlier run: it is copied before the new one replaces it
                    if overlap(target, self._path(source), links=system == FILE):
                        line = of_line(self._line(one.section))
                        self._report_target(output, f"would overwrite the application's own input{line}")
            for kept, what in ((workspace, "the workspace"), (self._file, "the properties file")):
                if kept and system == FILE and is_inside(os.path.realpath(kept), os.path.realpath(target)):
                    self._report_target(output, f"would overwrite {what}")
            for other in outputs[:place]:
                if self._system(other.target) != system:
                    continue
                if overlap(target, WILD.sub(r"\\\1", self._path(other.target)), links=system == FILE):
                    which = of_line(self._line(other.section)) or f" of [{other.section}]"
                    self._report_target(output, f"and the target{which} lie in each other")

    def _line(self, section: str) -> Line:
        lines = self._problems.lines
        return 0 if lines is None else lines.line(section, "hdfs")

    def _report_target(self, output: OutputSpec, problem: str) -> None:
        self._report(f"{output.section}.hdfs", f"{seen(self._path(output.target))} {problem}")


def _script_hint(text: str, workspace: str) -> str:
    """Return a suggestion for a missing script, to be appended to the problem."""
    words = text.split()
    there = [one for one in words if os.path.isfile(os.path.join(workspace, one))]
    if len(words) > 1 and there:
        script, *args = words[words.index(there[0]) :]
        by = "" if script == words[0] else f", with a first line #!/usr/bin/env {os.path.basename(words[0])}"
        more = f", and user_shell_args={' '.join(args)}" if args else ""
        return f"; write user_shell_script={script}{by}{more}"
    above = os.path.dirname(os.path.normpath(text))
    try:
        names = os.listdir(os.path.join(workspace, above))
    except OSError:
        return ""
    import difflib  # only for an error: it costs 5 ms

    near = difflib.get_close_matches(os.path.basename(text), names, n=1)
    return f"; the nearest is {shown(os.path.join(above, near[0]))}" if near else ""


def of_line(line: Line) -> str:
    """Format a line number, or an option, for a message after the name of the key."""
    return f" of {line}" if isinstance(line, str) else f" of line {line}" if line else ""
