"""Run a script at a terminal and type a text at each new match of a pattern: terminal.py PATTERN TEXT COMMAND...

So a command that runs until Ctrl-C, or asks at a prompt, runs as a person runs it. What it prints is printed; the exit
code is the command's.
"""

from __future__ import annotations

import os
import pty
import re
import sys


def main(pattern: str, text: str, *command: str) -> int:
    """Return the exit code of a command; 128 and more for a signal, as a shell has it.

    Args:
        pattern: a regular expression, matched with what was printed since the last match. What is printed a second
            time is not answered again.
        text: what is typed, with Python's escapes, as in ``\\x03`` for Ctrl-C.
        command: its words.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    seen, last, typed = b"", b"", text.encode().decode("unicode_escape").encode()
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: the last process has closed it
            break
        if not chunk:
            break
        os.write(sys.stdout.fileno(), chunk.replace(b"\r\n", b"\n"))
        seen += chunk
        if found := re.search(pattern.encode(), seen):
            seen = seen[found.end() :]
            if found[0] != last:
                os.write(terminal, typed)
            last = found[0]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
