"""Live workspace: the user's own directory, in which a program runs instead of in a copy of it."""

from __future__ import annotations

from dlapp.value import Value

DOCKER_SHELL = "/dlapp/shell"
"""Path of `LiveWorkspace.shell_dir` in a Docker container."""


class LiveWorkspace(Value, kw_only=True):
    """The user's own directory as the workspace of a dlapp-shell on this machine.

    Only the embedded engine accepts it, and only its task uses the path: as the working directory of a plain process,
    or as a mount in Docker. dlapp adds missing input to it and changes nothing else there. All that dlapp packs,
    commits, settles or removes has a path in its own directories.

    Args:
        path: absolute path of the directory.
        shell_dir: absolute path of the files of dlapp-run; in Docker mounted read-only at `DOCKER_SHELL`.
        session: absolute path of a file that dlapp-shell locks while it lives.
        records: absolute path of the directory with the records of fetched input (`dlapp.task.data.input_record`).
        tmp: TMPDIR of a plain process: that of the caller.
        lease_timeout_s: how long to wait for free GPUs of a cluster's ledger (`Secrets.ledger`).
        inputs, outputs: names and paths of the sections whose variables the program gets; their files are fetched and
            stored by others, if at all.
    """

    path: str
    shell_dir: str
    session: str
    records: str
    tmp: str = "/tmp"
    lease_timeout_s: float = 0.0
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
