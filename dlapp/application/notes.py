"""Notes on values that a shell or another program would interpret, and that dlapp passes on or ignores.

`submission_notes` is called once for a checked application, whether it was described by a file, options, keywords or a
spec. Each rule yields places and a text; places with the same text share one note.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dlapp.application.forms import REFERENCE
from dlapp.application.keys import OF_ROLES, without_quotes
from dlapp.locations import shown
from dlapp.values.program.placeholders import APP_ID, CACHE, HOSTS, MASTER, OF_CONTAINER, OF_PORT, TRIAL, names_in
from dlapp.values.program.submitter import inherited, is_well_known, proxies_in_docker
from dlapp.values.spec import AppSpec

if TYPE_CHECKING:
    from dlapp.application.description import ResolvedApplication
    from dlapp.config import Config

MAX_PLACES = 5
_HEAD_BYTES = 64 << 10
"""How much of a script is searched."""

_ENV = (
    ": $NAME, $(command) and ~ are not replaced in variables, so the program gets them as they are; set the variable "
    'in a start script, or where your shell replaces them: --env NAME="..."'
)
_WORDS = ": no shell reads this, so it is passed on as it is; use a start script, or command=sh -c '...'"
_GPUS_OF_PROGRAM = (
    ": {name} is set there, so the program does not use the GPUs that dlapp leases for it; remove it, and request GPUs "
    "with gcores"
)
_GPUS_OF_SUBMITTER = ": set here without effect; dlapp chooses the GPUs that it leases, and gcores is their number"

_TILDE = re.compile(r"(?:^|:)~[A-Za-z0-9_-]*(?:[/:]|$)", re.ASCII)
_OPERATOR = re.compile(
    r"\|[|&]?|&&?|;;?"
    r"|(?:\d*|&)>>?[|&]?(?:[^<>=][^<>]*)?|\d*<{1,3}(?:[^<>=][^<>=]*)?"  # not >=0.5 or <pad>
    r"|.+;|.*(?:&&|\|\|).*",
    re.ASCII | re.DOTALL,
)
_FIRST_OF_COMMAND = re.compile(
    r"cd|source|\.|export|set|unset|eval|exec|ulimit|umask|alias|shopt|trap|pushd|module|if|for|while|until|case|!|\{|\(.*"
    r"|[A-Za-z_][A-Za-z0-9_]*=.*",
    re.ASCII | re.DOTALL,
)
_FIRST_OF_ARGUMENTS = re.compile(
    r"(?:cd|source|\.) [^-].*|export [A-Za-z_][A-Za-z0-9_]*=.*|[A-Z_][A-Z0-9_]*=.*", re.ASCII | re.DOTALL
)
"""Fewer words than for a command: ``lr=0.1`` and ``export`` alone are arguments of common programs."""
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"))
_SHELL_OPTION = re.compile(r"-[A-Za-z]*c")
_QUOTED = re.compile(r"[\s'\"\\]")

_NOT_IN_VARIABLES = (
    ": in variables only {app_id} and {cache.NAME} are replaced; other names in braces are passed on as they are"
)
_NO_PORTS = "the containers have no ports"
_WITH_BRACES = frozenset(("awk", "gawk", "mawk", "nawk", "perl", "jq", "find", "xargs", "parallel"))
_BLANK = re.compile(r"\s")
_MIN_SIMILAR = 4
"""Letters of a name that is compared with others: shorter ones resemble too many."""
_OTHER_NAMES: Mapping[str, str] = {
    APP_ID: "appid application_id job_id jobid run_id slurm_job_id",
    "index": "container_index",
    "role_index": "rank task_index task_id node_rank worker_index",
    "role_size": "world_size num_workers num_nodes nnodes",
    "role": "job_name task_type role_name",
    "trial": "trial_id trial_number trial_index",
    MASTER: "master_addr master_address",
    HOSTS: "hosts worker_hosts ps_hosts hostlist",
}
"""Beginning of a placeholder -> its names in Slurm, torchrun, TensorFlow and others."""
_OTHER_SHORT_NAMES: Mapping[str, str] = {
    APP_ID: "id run job app",
    "index": "idx i container",
    "role_index": "task number",
    "role_size": "size replicas instances",
    "address": "addr ip hostname",
    MASTER: "chief leader coordinator",
    HOSTS: "host nodes addresses",
    CACHE: "cache caches cache_dir",
}
"""The same, for names that are common in formats."""

_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NV_GPU")
_ALL_GPUS = ("all", "void", "none")
"""Values of NVIDIA_VISIBLE_DEVICES in images, which select no GPU."""
_SET_BY_DLAPP = "DLAPP_CONTAINER_ID"
_SETS_GPUS = re.compile(
    rb"^(?![ \t]*+(?:#|echo\b|print))[^#\n]*?(?<![$\w{])(CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES)"
    rb"(?:=|['\"]\][ \t]*+=(?!=)[ \t]*+)(?!['\"]?+(?:\$\{?\1\b|-1|[=\s'\";)]|$))",
    re.MULTILINE,
)
"""Of Bourne shells and Python. An empty value and ``-1`` only hide GPUs."""

_INVISIBLE = {
    b"\xef\xbb\xbf": "a byte order mark",
    b"\xe2\x80\x8b": "a zero-width space",
    b"\xe2\x80\x8c": "a zero-width non-joiner",
    b"\xe2\x80\x8d": "a zero-width joiner",
    b"\xe2\x80\x8e": "a left-to-right mark",
    b"\xe2\x80\x8f": "a right-to-left mark",
    b"\xe2\x81\xa0": "a word joiner",
    b"\xc2\xad": "a soft hyphen",
    b"\xc2\xa0": "a no-break space",
    b"\xe3\x80\x80": "an ideographic space",
}
"""Characters in UTF-8 that no editor shows."""
_BEFORE = re.compile(rb"(?:%s|[ \t\r\n\f\v])+" % b"|".join(_INVISIBLE))
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"#\0!\0", b"\0#\0!")


def submission_notes(
    application: ResolvedApplication,
    config: Config,
    environ: Mapping[str, str],
    workspace: str = "",
    packed: Collection[str] = (),
) -> list[str]:
    """Return the notes on an application.

    Args:
        application: the application, without errors.
        config: the configuration.
        environ: the environment of the submitter.
        workspace: the real path of the workspace; empty if its files are not checked.
        packed: names of its files.
    """
    places: dict[str, list[str]] = {}
    for place, text in _found(application, config, environ, workspace, packed):
        of_text = places.setdefault(text, [])
        if place not in of_text:
            of_text.append(place)
    return [f"{_listed(of_text)}{text}" for text, of_text in places.items()]


def _found(
    application: ResolvedApplication,
    config: Config,
    environ: Mapping[str, str],
    workspace: str,
    packed: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each finding."""
    yield from _of_variables(application, environ)
    yield from _of_words(application)
    yield from _of_placeholders(application, environ)
    if workspace:
        yield from _of_scripts(application, workspace, packed)
    if _SET_BY_DLAPP not in environ:
        for name in _GPU_VARIABLES:
            if environ.get(name) and environ[name] not in _ALL_GPUS:
                yield name, _GPUS_OF_SUBMITTER
        if names := _not_passed(application, config, environ):
            yield "", f"not passed: {', '.join(names)} (pass_env)"
    if (
        application.spec.images
        and config.cluster == "local"
        and (other := other_docker(config.runtime.docker.host, environ))
    ):
        yield "", other


def _listed(places: Sequence[str]) -> str:
    more = len(places) - MAX_PLACES
    return ", ".join(places[:MAX_PLACES]) + (f" and {more} more" if more > 0 else "")


# ---- variables and words ----


def _of_variables(application: ResolvedApplication, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Find variables with a reference; what the submitter's environment has too, a shell has replaced already."""
    by_section = {"": application.env}
    by_section |= {f"{role.section} ": application.role_env.get(role.name, {}) for role in application.spec.roles}
    for section, variables in by_section.items():
        for name, value in variables.items():
            if (REFERENCE.search(value) or _TILDE.search(value)) and environ.get(name) != value:
                yield f"{section}env.{name}", _ENV


def _of_words(application: ResolvedApplication) -> Iterator[tuple[str, str]]:
    for place, is_command, words in _commands(application):
        if found := _shell_syntax(words, is_command=is_command):
            yield f"{place} ({', '.join(dict.fromkeys(shown(one) for one in found))})", _WORDS


def _commands(application: ResolvedApplication) -> Iterator[tuple[str, bool, Sequence[str]]]:
    """Yield the key, whether it is a command, and the masked words of each command and its arguments."""
    if application.properties is not None:
        for section, settings in application.properties.sections.items():
            for key in ("command", "user_shell_args" if section == "application" else "args"):
                if key in settings and section.partition(" ")[0] in ("application", *OF_ROLES):
                    from dlapp.application.shell_words import masked_words  # a file may have no arguments

                    place = key if section == "application" else f"{section} {key}"
                    yield place, key == "command", masked_words(without_quotes(settings[key].value))
        return
    spec = application.spec
    for place, command, args in (
        ("", spec.command, spec.args),
        *((f"{role.section} ", role.command or (), role.args or ()) for role in spec.roles),
    ):
        for key, words in (("command", command), ("args", args)):
            yield f"{place}{key}", key == "command", ["\0" if _QUOTED.search(word) else word for word in words]


def _shell_syntax(words: Sequence[str], *, is_command: bool) -> list[str]:
    """Return what a shell would interpret in masked words; what is after ``sh -c`` is read by a shell."""
    first = words[:1] if is_command else [" ".join(words[:2])]
    is_first = _FIRST_OF_COMMAND if is_command else _FIRST_OF_ARGUMENTS
    found = [_unmasked(words[0]) for one in first if is_first.fullmatch(one)]
    has_shell = False
    for place, word in enumerate(words):
        if has_shell and _SHELL_OPTION.fullmatch(words[place - 1]):
            continue
        has_shell = has_shell or posixpath.basename(word) in _SHELLS
        if _OPERATOR.fullmatch(word):
            found.append(_unmasked(word))
        elif reference := REFERENCE.search(word) or _TILDE.match(word):
            found.append(_unmasked(reference[0]))
    return found


def _unmasked(word: str) -> str:
    return word.partition("\0")[0] or "..."


# ---- placeholders ----


def known_names(spec: AppSpec) -> tuple[str, ...]:
    """Return the names of the placeholders in commands and arguments of an application, its sweep's first."""
    return (
        *(() if spec.sweep is None else (*spec.sweep.parameters, TRIAL)),
        *OF_CONTAINER,
        *OF_PORT,
        MASTER,
        *(f"{HOSTS}{role.name}" for role in spec.roles),
        *(f"{CACHE}{cache.name}" for cache in spec.caches),
    )


def _of_placeholders(application: ResolvedApplication, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Find names in braces that look like a placeholder and are not replaced. Quoted text is left out, and arguments of
    programs in which braces mean something else."""
    spec = application.spec
    known = known_names(spec)
    without_effect = {one: _NO_PORTS for one in OF_PORT if not any(role.ports for role in spec.roles)}
    if spec.sweep is None:
        without_effect["trial"] = "there is no [sweep]"
    for place, _, words in _commands(application):
        if _WITH_BRACES.isdisjoint(map(posixpath.basename, words)):
            for word in words:
                for name in names_in(word):
                    if name in without_effect:
                        yield place, f": {{{name}}} is not replaced: {without_effect[name]}"
                    elif name not in known and (
                        right := _right_name(name, word, known, is_sweep=spec.sweep is not None)
                    ):
                        yield place, f": {{{name}}} is not replaced, {right}"
    by_section = {"": application.env}
    by_section |= {f"{role.section} ": application.role_env.get(role.name, {}) for role in spec.roles}
    for section, variables in by_section.items():
        for variable, value in variables.items():
            for name in names_in(value) if environ.get(variable) != value and not _BLANK.search(value) else ():
                of_variables = (APP_ID, *(one for one in known if one.startswith(CACHE)))
                if name not in of_variables and (name in known or _meant_name(name, value, known)):
                    yield f"{section}env.{variable}", _NOT_IN_VARIABLES
    for section, target in _targets(application):
        for name in names_in(target):
            if name != APP_ID:
                yield f"{section}.hdfs", f": {{{name}}} is not replaced, in a target only {{{APP_ID}}} is"


def _targets(application: ResolvedApplication) -> Iterator[tuple[str, str]]:
    """Yield the sections of outputs and checkpoints, each with its location as the user wrote it."""
    spec = application.spec
    targets = {one.section: one.target for one in spec.outputs}
    if spec.checkpoint is not None:
        targets["checkpoint"] = spec.checkpoint.target
    for section, target in targets.items():
        if application.properties is None:
            yield section, target
        elif (given := application.properties.sections.get(section, {}).get("hdfs")) is not None:
            yield section, given.value


def _right_name(name: str, word: str, known: Sequence[str], *, is_sweep: bool) -> str:
    """Return the end of a note on an unknown name: the right one; empty if it may be part of a format. In a sweep each
    name is taken for a parameter."""
    if meant := _meant_name(name, word, known):
        return f"the nearest is {meant}"
    if not name.isidentifier() or not (is_sweep or _is_whole(name, word)):
        return ""
    from dlapp.system.text import nearest  # only for a note

    return nearest(name, known)


def _meant_name(name: str, word: str, known: Sequence[str]) -> str:
    """Return the placeholder that an unknown name stands for; empty if that is not clear."""
    folded = name.lower().replace("-", "_")
    for right, others in (*_OTHER_NAMES.items(), *(_OTHER_SHORT_NAMES.items() if _is_whole(name, word) else ())):
        if folded in others.split():
            return next((one for one in known if one.startswith(right)), "")
    is_format = not name.replace("-", "_").isidentifier() and not folded.startswith(("host", "cache"))
    if is_format or len(name) < _MIN_SIMILAR:
        return ""
    import difflib  # only for a note

    found = difflib.get_close_matches(folded, known, n=1, cutoff=0.8)
    return found[0] if found else ""


def _is_whole(name: str, word: str) -> bool:
    """Return whether a name in braces is an argument, the value of an option, or a part of a path."""
    return bool(re.fullmatch(rf"(?:-*[\w.-]+=)?(?:[^{{}}]*/)?\{{{re.escape(name)}\}}(?:/[^{{}}]*)?", word))


# ---- variables of the submitter ----


def _not_passed(application: ResolvedApplication, config: Config, environ: Mapping[str, str]) -> list[str]:
    """Return the well-known variables of the submitter that a program does not get."""
    spec = application.spec
    given = set(application.env).union(*application.role_env.values())
    set_here = {name: text for name, text in environ.items() if text and is_well_known(name)}
    passed = set(set_here)
    for role in spec.roles:
        if config.cluster != "local":
            passed.clear()
        elif spec.image_of(role) is None:
            passed &= inherited(set_here).keys()
        else:
            network = spec.network_of(role) or config.runtime.docker.network
            passed &= proxies_in_docker(set_here, own_network=network != "host").keys()
    return sorted(set_here.keys() - passed - given)


# ---- scripts ----


def _of_scripts(application: ResolvedApplication, workspace: str, packed: Collection[str]) -> Iterator[tuple[str, str]]:
    spec = application.spec
    for role in spec.roles:
        program, is_plain = spec.program_of(role), spec.image_of(role) is None
        texts = [("the command", os.fsencode(word)) for word in (*program.command[1:], *program.args)]
        for name in (program.script,) if program.script else map(posixpath.normpath, program.command):
            if name not in packed and name != program.script:
                continue
            try:
                with open(os.path.realpath(os.path.join(workspace, name)), "rb", opener=_open_nonblocking) as script:
                    head, is_executable = (
                        script.read(_HEAD_BYTES) or b"",
                        bool(os.fstat(script.fileno()).st_mode & 0o100),
                    )
            except OSError:
                continue  # it has its own error, or packing will report one
            own = _relative_path(os.path.join(spec.workspace, name))
            text = _of_first_bytes(head, own)
            if program.script and not text:
                text = _of_first_line(head, name, own, is_executable=is_executable)
            if text:
                yield shown(name), text
            texts.append((shown(name), head))
        for place, content in texts if is_plain else ():  # in Docker a program sees only its GPUs, from 0
            if found := _SETS_GPUS.search(content):
                yield place, _GPUS_OF_PROGRAM.format(name=found[1].decode())


def _of_first_bytes(head: bytes, own: str) -> str:
    """Return the note on a script that begins with bytes that an editor does not show."""
    if head.startswith(_UTF_16):
        return " is UTF-16, which no interpreter reads; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    before = found[0] if (found := _BEFORE.match(head)) else b""
    has_line = head.startswith(b"#!", len(before))
    names = [name for character, name in _INVISIBLE.items() if character in before]
    if not before or not (has_line or (names and b"\n" not in before)):
        return ""
    what = " and ".join(names) or ("an empty line" if b"\n" in before else "a blank")
    so = "its #! line has no effect" if has_line else "it is read as part of the first word"
    edit = "/#!/,$!d" if b"\n" in before else "1s/^" + "".join(f"\\x{byte:02x}" for byte in before) + "//"
    return f" begins with {what}, so {so}: sed -i {_quoted(edit)} {own}"


def _of_first_line(head: bytes, name: str, own: str, *, is_executable: bool) -> str:
    """Return the note on a start script that is not run as its first line says."""
    first, _, _ = head[:256].partition(b"\n")
    is_script, words = first.startswith(b"#!"), first.removeprefix(b"#!").split()
    is_of_shell = not words or os.path.basename(words[-1]) in (b"sh", b"bash")
    if is_script and not is_executable and not is_of_shell:
        return f" has no x bit, so bash runs it and not {shown(os.fsdecode(b' '.join(words)))}: chmod +x {own}"
    if not is_script and name.endswith(".py"):
        return f" has no #! line, so bash runs it: begin it with #!/usr/bin/env python3, and chmod +x {own}"
    if first.endswith(b"\r") and b"\0" not in first:
        starts = is_script and is_executable
        so = "it cannot be started" if starts else "bash reads a carriage return at the end of each line"
        return f" has Windows line ends, so {so}: sed -i 's/\\r$//' {own}"
    return ""


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO without a writer


def _quoted(text: str) -> str:
    import shlex  # only for a note

    return shlex.quote(text)


def _relative_path(path: str) -> str:
    """Return a path for use in a command typed in the working directory."""
    with contextlib.suppress(OSError):  # the working directory was removed
        if not (near := os.path.relpath(path)).startswith("../"):
            path = near
    return _quoted(path)


# ---- the submitter's Docker ----


def other_docker(host: str, environ: Mapping[str, str]) -> str:
    """Return how the submitter's ``docker`` finds another daemon than dlapp, whose socket cannot be used; else empty.

    Source: docker/cli, command.resolveContextName: DOCKER_HOST, DOCKER_CONTEXT, then the context of ``docker context
    use``.

    Args:
        host: the address that dlapp uses, ``runtime.docker.host``.
        environ: the environment of the submitter.
    """
    if os.access(host.removeprefix("unix://"), os.R_OK | os.W_OK):
        return ""
    if other := environ.get("DOCKER_HOST", ""):
        if other == host:
            return ""
        advice = f"export DLAPP_RUNTIME_DOCKER_HOST={_quoted(other)}"
        if not other.startswith("unix://"):
            advice = "only a daemon of this machine can be used (unix://...)"
        return f"DOCKER_HOST is set to {shown(other)}; dlapp uses runtime.docker.host, {host}: {advice}"
    name = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if name in ("", "default"):
        return ""
    return (
        f"docker uses its context {shown(name)}; dlapp uses runtime.docker.host, {host}: "
        f"export DLAPP_RUNTIME_DOCKER_HOST=... with the address that `docker context inspect` shows"
    )


def _current_context(environ: Mapping[str, str]) -> str:
    directory = environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME", ""), ".docker")
    import json  # only if the socket cannot be used

    try:
        with open(os.path.join(directory, "config.json"), "rb") as file:
            found = json.loads(file.read(_HEAD_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    name = found.get("currentContext") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""
