"""Start of TensorBoard, beside a payload and by dlapp-board.

Its arguments are in a variable of the environment, which only its user can read: one of them is the secret path.
"""

from __future__ import annotations

import os

ARGUMENTS_VARIABLE = "DLAPP_BOARD_ARGUMENTS"
EVENTS = "tfevents"
"""Part of the names of event files. Source: TensorBoard, io_wrapper.IsTensorFlowEventsFile."""
MAX_FILES, MAX_LINE_BYTES = 10_000, 8 << 20
"""Maximum number of event files that are copied, and maximum length of the line with all their names."""
NOT_INSTALLED = 127
"""Exit code where it is not there; a shell has the same for a program that is not."""
_START = f"""
import json, os, sys
sys.argv = ["tensorboard", *json.loads(os.environ.pop("{ARGUMENTS_VARIABLE}"))]
try:
    from tensorboard.main import run_main
except ModuleNotFoundError as error:
    print(error, file=sys.stderr)
    sys.exit({NOT_INSTALLED})
run_main()
"""
COMMAND = ("python3", "-c", _START)


def new_prefix() -> str:
    """Return a path for its pages that nobody can guess."""
    return f"/{os.urandom(16).hex()}/"


def arguments(directory: str, address: str, port: int, prefix: str) -> list[str]:
    """Return its arguments.

    Args:
        directory: that it reads, with all below.
        address, port: on which it listens.
        prefix: the prefix of the paths of its pages.
    """
    return [
        f"--logdir={directory}",
        f"--host={address}",
        f"--port={port}",
        f"--path_prefix={prefix.rstrip('/')}",
        "--reload_interval=5",
        # The fast way is a second server, whose port is not protected by a secret.
        "--load_fast=false",
    ]
