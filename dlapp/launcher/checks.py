"""Checks before a submission: the input exists, the output can be written, the script is packed.

Each check collects its findings, so that a user sees all of them at once.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.application.description import ResolvedApplication
from dlapp.application.properties import Problems
from dlapp.application.resolve import of_line
from dlapp.errors import DlappError
from dlapp.launcher.workspace.scan import DEFAULT_EXCLUDES, Scan
from dlapp.locations import FILE, last_name, local_path, shown
from dlapp.storage.commit import finish_interrupted
from dlapp.storage.commit.marker import LONGEST_SUFFIX
from dlapp.storage.glob import escape_wildcards
from dlapp.storage.open import open_location, open_output
from dlapp.storage.values import MatchedEntry, TreeNode
from dlapp.system.disk_space import existing_above
from dlapp.system.files import NAME_MAX, PATH_MAX, is_inside
from dlapp.values.image_name import parse_image_name
from dlapp.values.spec import DEFAULT_ROLE, InputSpec, OutputSpec, needing_host_network

if TYPE_CHECKING:
    from dlapp.node_policy import DockerPolicy, RegistryPolicy

Note = Callable[[str], None]
_WITHIN_TARGET = 512
"""Bytes of the longest path for what is added to a target and to a path in the workspace: names beside a target, names
of containers, and the directory of a container. What is in an output is reached by descriptors."""


class SubmissionCheck:
    """Checks of one application against the current state of files and hosts.

    Args:
        scan: files of the workspace to be packed.
        problems: collects the errors.
        note: called with notices for the user.
        settings: option that sets keys of an application without its own file; empty if it has one.
    """

    def __init__(
        self, application: ResolvedApplication, scan: Scan, problems: Problems, note: Note, settings: str = ""
    ) -> None:
        self.application, self.spec, self.hdfs = application, application.spec, application.hdfs
        self.scan, self.problems, self.note, self.settings = scan, problems, note, settings

    def all(self, *, workspace_is_packed: bool) -> None:
        """Check everything.

        Args:
            workspace_is_packed: it was packed before, and the scan is empty.
        """
        if not workspace_is_packed:
            self.scripts()
        self.names()
        packed = {entry.name: self._is_dir(entry.name, entry.mode) for entry in self.scan.entries}
        fetched: dict[str, MatchedEntry] = {}
        known = frozenset(self.problems.named)  # a location with an error is none
        for one in self.spec.inputs:
            if f"{one.section}.hdfs" not in known:
                self.input(one, packed, fetched)
        for output in self.spec.outputs:
            if f"{output.section}.hdfs" not in known:
                self.output(output)

    def names(self) -> None:
        """Check that all names that dlapp makes of the user's will be possible: most of them are made after the program
        has ended. The other names of a file are limited in its rules, and names of containers and logs have none of the
        user's in them.
        """
        spec, checkpoint = self.spec, self.spec.checkpoint
        paths = [(f"{one.section}.input_path", one.input_path) for one in spec.inputs]
        paths += [(f"{one.section}.output_path", one.output_path) for one in spec.outputs]
        targets = [(f"{one.section}.hdfs", one.target, LONGEST_SUFFIX) for one in spec.outputs]
        if checkpoint is not None:
            paths.append(("checkpoint.path", checkpoint.path))
            targets.append(("checkpoint.hdfs", checkpoint.target, ""))  # its names are in a directory
        found = [(where, _problem_of_names(path, NAME_MAX, PATH_MAX)) for where, path in paths]
        for where, target, suffix in targets:
            if target.startswith(FILE):
                path = local_path(target)
                longest = os.pathconf(existing_above(os.path.dirname(path)), "PC_NAME_MAX")
                found.append((where, _problem_of_names(path, longest, PATH_MAX, suffix)))
            else:
                from dlapp.storage.hdfs.file_system import MAX_PATH  # not needed for files of this machine

                path = target.partition("://")[2].partition("/")[2]
                found.append((where, _problem_of_names(path, NAME_MAX, MAX_PATH, suffix)))
        if "\0" in spec.appname:
            found.append(("application.appname", "has a NUL in it, and a variable of the program has it"))
        for where, problem in found:
            if problem:
                self.problems.report(where, problem)

    def network(self, problem: str) -> None:
        """Check that the network exists, and warn if the earlier default was relied on.

        Args:
            problem: why they cannot, as dockerd reports; empty if unknown.
        """
        network = self.spec.network
        is_default = not self.application.gives_network
        if problem:
            role = needing_host_network(self.spec.roles, self.spec.docker_image, services=True)
            if role is not None:
                network = self.spec.network_of(role)
                where = f", without which the ports of role {role.name} cannot be reached"
            else:
                where = " (runtime.docker.network)" if is_default else ""
            self._add_problem("application", "network", f"is {network}{where}: {problem}")
            return
        count = self.spec.main_containers
        if count > 1 and is_default and network not in (None, "host"):
            self.note(
                f"the {count} containers are in Docker's network {network} and do not reach each other "
                f"as in host, the earlier default; set network=host in [application] if they must, else "
                f"network={network}"
            )

    def images(self, policy: RegistryPolicy) -> None:
        """Check that the images may be used where the containers run."""
        for section, image in (
            ("application", self.spec.docker_image),
            *((role.section, role.docker_image) for role in self.spec.roles),
        ):
            if image is not None and (problem := policy.forbidden(policy.resolve(parse_image_name(image)))):
                self._add_problem(section, "docker_image", f"{shown(image)} {problem}")

    def capabilities(self, policy: DockerPolicy) -> None:
        """Check that the containers may have the driver capabilities of ``gpu_capabilities``."""
        for section, names in (
            ("application", self.spec.gpu_capabilities),
            *((role.section, role.gpu_capabilities) for role in self.spec.roles),
        ):
            if problem := policy.forbidden_capabilities(names or ()):
                self._add_problem(section, "gpu_capabilities", problem)

    def scripts(self) -> None:
        """Check that the start scripts and the targets of their links are packed."""
        keys = {}
        for role in self.spec.roles:
            if script := self.spec.program_of(role).script:
                own = (role.section, "script")
                keys[own if role.script is not None else ("application", "user_shell_script")] = script
        packed = {entry.name for entry in self.scan.entries}
        for (section, key), script in keys.items():
            self._script(section, key, script, packed)

    def _script(self, section: str, key: str, script: str, packed: set[str]) -> None:
        root = os.path.realpath(self.scan.root)
        real = os.path.relpath(os.path.realpath(os.path.join(root, script)), root)
        for name in {script, real} - packed:
            for output in self.spec.outputs:
                if is_inside(f"/{name}", f"/{output.output_path}"):
                    of = output.section
                    problem = f"{shown(name)} is in output_path of [{of}], whose files are not packed"
                    break
            else:
                default = self.spec.exclude_defaults and set(name.split("/")) & set(DEFAULT_EXCLUDES)
                by = "defaults" if default else "list"
                problem = f"{shown(name)} is excluded by user_dev_workspace_exclude_{by}"
            self._add_problem(section, key, problem)

    def input(self, one: InputSpec, packed: dict[str, bool], fetched: dict[str, MatchedEntry]) -> None:
        """Check that every source has matches, which can be fetched to their destinations.

        Args:
            packed: path in the workspace -> whether it is a directory.
            fetched: path in the workspace -> what other sources fetch there; updated here.
        """
        section = one.section
        if (one.as_list or one.mount) and one.input_path in packed:
            where = "the list would be written" if one.as_list else "the directory would be mounted"
            self._add_problem(section, "input_path", f"the workspace has {shown(one.input_path)}, where {where}")
            return
        parts = one.input_path.split("/")
        for upper in ("/".join(parts[: place + 1]) for place in range(len(parts))):
            if packed.get(upper) is False:
                self._add_problem(section, "input_path", f"{shown(upper)} is a file of the workspace")
                return
        files: list[TreeNode] = []
        for source in one.sources:
            try:
                entries = open_location(source, self.hdfs).matches(source)
            except DlappError as error:
                self._add_problem(section, "hdfs", error)
                continue
            if one.mount and len(entries) > 1:
                self._add_problem(
                    section, "hdfs", f"{_path(source)} matches {len(entries)} names; one directory is mounted"
                )
            if not entries:
                literal = self._literal_of(source)
                if one.optional:
                    self.note(f"[{section}] {_path(source)} matches nothing now{literal}; it is optional")
                else:
                    self._add_problem(section, "hdfs", f"{_path(source)} matches nothing{literal}")
            for entry in entries:
                if one.mount:
                    if problem := _unreadable(entry) or ("" if entry.is_dir else "is not a directory"):
                        self._add_problem(section, "hdfs", problem)
                    continue
                if problem := _unreadable(entry) or self._problem_inside(entry, None if one.feed is None else files):
                    self._add_problem(section, "hdfs", problem)
                if one.mode == "copy" and not one.unpack:
                    self._check_destination(section, one, entry, packed, fetched)
        if one.feed is not None:
            from dlapp.storage.inputs import check_feed

            try:
                check_feed(one.feed, files)
            except DlappError as error:
                self._add_problem(section, "feed.buffer", error)
            for role in self.spec.roles:
                if one.shard and one in self.spec.inputs_of(role) and len(files) < role.instances:
                    them = "containers, so some" if role.name == DEFAULT_ROLE else f"containers of {role.name}, so some"
                    self.note(f"[{section}] has {len(files)} files for {role.instances} {them} get none")

    def _literal_of(self, source: str) -> str:
        """Return how to write a pattern without a match whose characters are those of an existing name; else empty."""
        for kept in ("*", ""):  # run[1]/*.png, then run[1]
            escaped = escape_wildcards(source, but=kept)
            with contextlib.suppress(DlappError):
                if escaped != source and open_location(escaped, self.hdfs).matches(escaped):
                    pairs = zip(source.split("/"), escaped.split("/"), strict=True)
                    names = " and ".join(shown(new) for old, new in pairs if new != old)
                    return f" as a pattern, and this name exists: write {names}"
        return ""

    def _problem_inside(self, entry: MatchedEntry, files: list[TreeNode] | None) -> str:
        """Return why an entry cannot be fetched completely; empty if it can. Add its files to ``files``, if given."""
        try:
            nodes = open_location(entry.location, self.hdfs).tree(entry)
            if files is not None:
                files += [node for node in nodes if node.is_file]
        except DlappError as error:
            return str(error)
        return ""

    def _check_destination(
        self,
        section: str,
        one: InputSpec,
        entry: MatchedEntry,
        packed: dict[str, bool],
        fetched: dict[str, MatchedEntry],
    ) -> None:
        for output in self.spec.outputs:
            # Patterns were compared before; this covers links that a pattern matched.
            if _same_place(entry.location, output.target):
                which = of_line(self.application.line(f"{output.section}.hdfs")) or f" [{output.section}]"
                self._add_problem(section, "hdfs", f"{_path(entry.location)} would be overwritten by the output{which}")
        name = posixpath.normpath(posixpath.join(one.input_path, last_name(entry.location)))
        other = fetched.setdefault(name, entry)
        if other.location != entry.location and not (other.is_dir and entry.is_dir):
            both = f"{_path(entry.location)} and {_path(other.location)}"
            self._add_problem(section, "hdfs", f"{both} would both be placed at {shown(name)}")
        elif name in packed and not (entry.is_dir and packed[name]):
            self._add_conflict(section, entry, name)
        elif name in packed:
            storage = open_location(entry.location, self.hdfs)
            for inner, is_dir in packed.items():
                if inner.startswith(f"{name}/") and not is_dir and storage.exists(entry.location + inner[len(name) :]):
                    self._add_conflict(section, entry, inner)

    def _add_conflict(self, section: str, entry: MatchedEntry, name: str) -> None:
        what = f"the workspace has {shown(name)}, where {_path(entry.location)} would be placed; exclude or rename it"
        self._add_problem(section, "hdfs", what)

    def _options_of(self, section: str) -> str:
        """Return the options that give an application without its own file another target, or replace the existing
        one.
        """
        if not self.settings:
            return ""
        options = f"{section}.hdfs=PATH", f"{section}.overwrite=true"
        another, replaced = (f"{self.settings} '{one}'" if " " in one else f"{self.settings} {one}" for one in options)
        return f" ({another}, or {replaced})"

    def output(self, output: OutputSpec) -> None:
        """Check that a target can be written, and is free or may be replaced. Finish an interrupted swap first."""
        section = output.section
        path = _path(output.target)
        try:
            settled = [
                f"the output of {application}, which was cut off, is put in place now"
                for application in finish_interrupted(output.target, hdfs=self.hdfs)
            ]
            for what in settled:
                self.note(f"{path}: {what}")
            storage = open_output(output.target, self.hdfs)
            if not output.overwrite and storage.exists(output.target):
                why = f" ({settled[-1]})" if settled else ""
                options = self._options_of(section)
                what = f"{path} already exists{why}; name another, or set overwrite=true{options}"
                self._add_problem(section, "hdfs", what)
                return
            place = f"{output.target}/0" if output.by_trial and storage.exists(output.target) else output.target
            for lack in storage.check_writable(place, overwrite=output.overwrite):
                self.note(f"{path}: {lack}")
            root = os.path.realpath(self.scan.root)
            is_local = bool(self.spec.workspace and self.scan.root) and output.target.startswith(FILE)
            if is_local and is_inside(os.path.realpath(local_path(output.target)), root):
                kept = any(
                    is_inside(local_path(output.target), f"{root}/{one.output_path}") for one in self.spec.outputs
                )
                if not kept:
                    self.note(
                        f"{path} lies in the workspace: the next run would pack it; exclude it, or put it elsewhere"
                    )
        except DlappError as error:
            self._add_problem(section, "hdfs", error)

    def _add_problem(self, section: str, key: str, problem: object) -> None:
        self.problems.report(f"{section}.{key}", problem)

    def _is_dir(self, name: str, mode: int) -> bool:
        return stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and os.path.isdir(f"{self.scan.root}/{name}"))


def _problem_of_names(path: str, longest_name: int, longest_path: int, suffix: str = "") -> str:
    """Return why a path, or one with names beside it, is not possible; empty if both are.

    Args:
        path: the path.
        longest_name, longest_path: what the file system allows [bytes].
        suffix: the most that is added to its last name.
    """
    names = path.rstrip("/").split("/")
    for name in names:
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > longest_name:
            return f"a name in it has {size} bytes, at most {longest_name} are possible: {shown(name[:40])}…"
    if size + len(suffix) > longest_name:
        return (
            f"its last name has {size} bytes, at most {longest_name - len(suffix)} are possible, because names beside "
            f"it are longer, as NAME.application_1700000000000_0042.partial: {shown(name[:40])}…"
        )
    if (size := len(path.encode("utf-8", "surrogatepass"))) > longest_path - _WITHIN_TARGET:
        return f"it has {size} bytes, at most {longest_path - _WITHIN_TARGET} are possible"
    return ""


def _path(location: str) -> str:
    """Return a location for a message."""
    return shown(location.removeprefix(FILE))


def _unreadable(entry: MatchedEntry) -> str:
    """Return why a local file or directory cannot be fetched; empty if it can."""
    if not entry.location.startswith(FILE):
        return ""
    path = local_path(entry.location)
    if not os.path.exists(path):
        return f"{_path(path)} is a broken link"
    if not os.access(path, os.R_OK | (os.X_OK if entry.is_dir else 0), effective_ids=True):
        return f"{_path(path)} may not be read"
    return ""


def _same_place(location: str, target: str) -> bool:
    if not location.startswith(FILE) or not target.startswith(FILE):
        return False
    path = local_path(location)
    if not os.path.islink(path):
        return False
    real, goal = os.path.realpath(path), os.path.realpath(local_path(target))
    return is_inside(real, goal) or is_inside(goal, real)
