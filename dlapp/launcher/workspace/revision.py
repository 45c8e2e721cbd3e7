"""The git commit of a workspace, by which a run can be traced to its source.

``git`` itself reads it, in a process beside the packing; a workspace outside of any repository starts none.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlapp.system.text import counted

if TYPE_CHECKING:
    import subprocess

_PATIENCE_S = 5.0
"""A large working tree on a network file system takes minutes, and a submission does not wait for a label."""
_HEX_DIGITS = 12
_MAX_REASON = 200


class RevisionQuery:
    """A running ``git status`` of a workspace; `text` must be called once."""

    def __init__(self, workspace: str, environ: Mapping[str, str]) -> None:
        """Start git if the workspace is in a repository.

        Args:
            workspace: its absolute path.
            environ: the environment of the submitter. GIT_DIR and the like may name another repository.
        """
        self._process: subprocess.Popen[str] | None = None
        if not _is_in_repository(workspace):
            return
        import subprocess  # few workspaces are repositories

        env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        # No lock of the index, which a command of the user may need at this moment, and no file system monitor.
        words = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", workspace]
        words += ["status", "--porcelain=v2", "--branch", "--", "."]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**env, "LC_ALL": "C"},
                start_new_session=True,  # a filter of the repository ends with it
            )
        except OSError:
            return  # no git on this machine: nobody expects a commit

    def text(self) -> str:
        """Return ``a1b2c3d4e5f6 (main), 2 files changed``, or why it is unknown; empty without a repository or git."""
        if (process := self._process) is None:
            return ""
        import subprocess

        with process:
            try:
                out, err = process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"unknown: git status took longer than {_PATIENCE_S:.0f} s"
        if process.returncode:
            reason = err.strip().partition("\n")[0][:_MAX_REASON]
            return f"unknown: {reason or f'git status ended with {process.returncode}'}"
        return revision_text(out)


def revision_text(porcelain: str) -> str:
    """Return the text of a `RevisionQuery`.

    Args:
        porcelain: output of ``git status --porcelain=v2 --branch``. Source: git-status(1), Porcelain Format Version 2.
    """
    lines = porcelain.rstrip("\n").split("\n") if porcelain else []
    head = dict(line.removeprefix("# ").partition(" ")[::2] for line in lines if line.startswith("# branch."))
    changed = sum(not line.startswith("#") for line in lines)
    oid, branch = head.get("branch.oid", ""), head.get("branch.head", "")
    text = "no commit yet" if oid == "(initial)" else oid[:_HEX_DIGITS]
    text += f" ({branch.strip('()')})" if branch else ""
    return text + (f", {counted(changed, 'files')} changed" if changed else "")


def _is_in_repository(workspace: str) -> bool:
    directory = os.path.realpath(workspace)
    while True:
        with contextlib.suppress(OSError):
            # git runs programs that a repository names. It refuses another user's only since 2.35.2.
            return os.lstat(os.path.join(directory, ".git")).st_uid in (0, os.geteuid())
        parent = os.path.dirname(directory)
        if parent == directory:
            return False
        directory = parent
