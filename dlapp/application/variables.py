"""Variables of an application: from its file, its ``env_file``, the submitter's environment and options of a command.

Values never appear in messages: they may be secrets.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlapp.application.forms import DRIVER_CAPABILITIES, MAX_ARGUMENT_BYTES, check_variable
from dlapp.application.keys import ENV, OF_ROLES, named_keys
from dlapp.application.overrides import Overrides
from dlapp.application.paths import own_path, seen
from dlapp.application.properties import MAX_BYTES, Problems
from dlapp.errors import UsageError, problem_of
from dlapp.values.spec import check_env_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Variables(NamedTuple):
    """The variables of an application.

    Args:
        env: those of all programs.
        role_env: role -> those of its programs only, which override equal names.
        env_file: absolute path of the env_file; empty if there is none.
        of_file: the variables of the env_file.
        notes: lines for the user.
    """

    env: dict[str, str]
    role_env: dict[str, dict[str, str]]
    env_file: str
    of_file: dict[str, str]
    notes: tuple[str, ...]


def read_variables(
    values: Mapping[str, Mapping[str, Any]],
    directory: str,
    problems: Problems,
    *,
    overrides: Overrides,
    environ: Mapping[str, str],
    of_file: Mapping[str, str] | None = None,
) -> Variables:
    """Return the variables that an application sets; those of options win.

    Args:
        values: section -> key -> value.
        directory: a relative path of the env_file begins there.
        problems: collects the errors.
        overrides: options of the command.
        environ: the environment of the submitter; pass_env takes values of it.
        of_file: the variables of the env_file; None to read it.
    """
    application, notes = values.get("application", {}), list[str]()
    env: dict[str, str] = dict(named_keys(application, ENV))
    path, env_file, found = application.get("env_file"), "", dict(of_file or {})
    if path is not None:
        try:
            if of_file is None:
                env_file = own_path(path, directory)
                found = read_env_file(env_file)
        except ValueError as refused:
            for line in str(refused).split("\n"):
                problems.report("application.env_file", line)
        for name in sorted(env.keys() & found.keys()):
            problems.report(f"application.{ENV}{name}", "is set in env_file too")
        env.update(found)
    for name in application.get("pass_env", ()):
        if name in env:
            problems.report("application.pass_env", f"{name} is set in the file too")
        elif name in overrides.env:
            continue
        elif (value := environ.get(name)) is None:
            notes.append(f"pass_env: {name} is not set here, so the program does not get it")
        else:
            try:
                env[name] = check_variable(value)
            except ValueError as problem:
                problems.report("application.pass_env", f"{name} {problem}")
    for name, value in overrides.env.items():
        try:
            check_env_name(name, name)
            env[name] = check_variable(value, name)
        except ValueError as refused:
            problems.add(overrides.names.env, name, problem_of(refused))
    role_env = {
        section.partition(" ")[2]: variables
        for section, settings in values.items()
        if section.partition(" ")[0] in OF_ROLES
        and (variables := {name: one for name, one in named_keys(settings, ENV) if name not in overrides.env})
    }
    return Variables(env, role_env, env_file, found, tuple(notes))


def read_env_file(path: str) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; values are literal, including quotes.

    Empty lines and lines that begin with ``#`` are skipped. Messages never quote the file: it contains secrets.

    Raises:
        UsageError: others may read it, it is another user's, or a line is not a variable; one line for each error.
    """
    try:
        # Do not block on a FIFO without a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{seen(path)}: is not a file")
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{seen(path)}: is another user's file")
            if mode := stat.S_IMODE(status.st_mode) & 0o077:
                full = stat.S_IMODE(status.st_mode)
                raise UsageError(f"{seen(path)}: has mode {full:04o}, others may use it ({mode:04o}); chmod 600 it")
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{seen(path)}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{seen(path)}: has more than {MAX_BYTES >> 20} MiB")
    return _variables(data, path)


def _variables(data: bytes, path: str) -> dict[str, str]:
    env: dict[str, str] = {}
    problems: list[str] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{seen(path)}:{number}"
        try:
            line = raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            problems.append(f"{where}: is not UTF-8")
            continue
        if not line.strip(" \t") or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        try:
            if not separator or not _VARIABLE.fullmatch(name):
                raise ValueError("is not NAME=value")
            check_env_name(name, name)
            if name in env:
                raise ValueError(f"{name}: appears twice")
            if "\0" in value:
                raise ValueError(f"{name}: has a NUL in it")
            if len(raw) >= MAX_ARGUMENT_BYTES:
                raise ValueError(f"{name}: has {len(raw)} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1}")
            if name in ("PATH", DRIVER_CAPABILITIES):
                check_variable(value, name)
            env[name] = value
        except ValueError as problem:
            problems.append(f"{where}: {problem}")
    if problems:
        raise UsageError("\n".join(problems[:20]))
    return env
