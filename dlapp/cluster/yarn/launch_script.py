"""Quoting of commands and variables for the script that a NodeManager writes for a container.

A client needs it without Hadoop's messages, whose library takes it 30 ms to load.
"""

from __future__ import annotations

REPLACED = ("{{", "}}", "<CPS>", "<ADD_OPENS>", "\0")
"""Texts that a NodeManager replaces anywhere in a command or a variable, so that they cannot be passed."""


def shell_command(words: tuple[str, ...]) -> str:
    """Return a command line that passes exactly these arguments to a program in the script that a NodeManager writes.

    The NodeManager puts it inside ``bash -c "..."``. So each word is quoted for the inner shell, and the whole line for
    the double quotes of the outer shell. ``<LOG_DIR>`` is replaced before both. The program replaces the shell (exec);
    its output goes to the container's log directory. Source: ContainerLaunch, ContainerExecutor.

    Raises:
        ValueError: a word contains a text of `REPLACED`.
    """
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    return inside_double_quotes(f"exec {quoted}") + " 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr </dev/null"


def inside_double_quotes(text: str) -> str:
    """Return the text of a variable's value, which a NodeManager writes inside double quotes, so that it arrives
    unchanged. Raises ValueError: it contains a text of `REPLACED`."""
    if found := [one for one in REPLACED if one in text]:
        raise ValueError(f"{found[0]!r} cannot pass through a NodeManager's script")
    return "".join(f"\\{one}" if one in '\\"$`' else one for one in text)
