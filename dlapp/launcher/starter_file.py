"""Initial properties file of a directory, with a comment on each key: written by ``dlapp-launcher --init``."""

from __future__ import annotations

import os
import shlex

from dlapp.errors import UsageError

_PROGRAMS = ("start.sh", "run.sh", "train.sh", "main.sh", "train.py", "main.py", "run.py")
"""Names of files that are used as the program, in order of preference."""
_TEXT = """\
# What dlapp runs. Run it with: dlapp-launcher --wait {file}
# docs/properties.md describes every key.

[application]
# The name that dlapp-status and dlapp-list show.
appname={name}
# The directory with your program, relative to this file. It is packed, and unpacked in each container.
user_dev_workspace_path=.
# Files of it that are not packed.
user_dev_workspace_exclude_list=/{file}, /results
# The program, which starts in that directory: a script, or command=WORD WORD ...
{program}
# The Docker image that it runs in. Without one it is a process of the machine.
#docker_image=

[resources]
# Of each container; gcores is the number of GPUs.
containers=1
memory=1g
vcores=1
gcores=0

# Input that is fetched before the program starts: from hdfs=, to this path in the workspace.
#[from_hdfs]
#hdfs=data
#input_path=data

# Output that is stored at the end: from this path in the workspace, to hdfs=. On a single machine both are
# directories of it. The program must write to output_path.
#[to_hdfs]
#output_path=output
#hdfs=results
#overwrite=true
"""


def write_starter_file(path: str) -> str:
    """Write a properties file for the program in its directory.

    Args:
        path: the path of the file; must not exist.

    Returns:
        The program that it runs; empty if none was found, so that the file has an example.

    Raises:
        UsageError: the file exists already, or cannot be written.
    """
    directory, file = os.path.split(os.path.abspath(path))
    try:
        program = _program_in(directory)
        text = _TEXT.format(file=file, name=_name_of(directory), program=_key_of(program or "start.sh"))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        raise UsageError(f"{path} exists; --init writes a new file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)
    return program


def _program_in(directory: str) -> str:
    names = sorted(one.name for one in os.scandir(directory) if one.is_file() and one.name.endswith((".sh", ".py")))
    likely = [name for name in _PROGRAMS if name in names]
    return likely[0] if likely else names[0] if len(names) == 1 else ""


def _key_of(program: str) -> str:
    if program.endswith(".py"):
        return f"command=python3 {shlex.quote(program)}"
    return f"user_shell_script={program}"


def _name_of(directory: str) -> str:
    name = os.path.basename(directory).strip("'\" ")
    return name if name and name.isprintable() and not name.startswith(("#", ";")) else "app"
