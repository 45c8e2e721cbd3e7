"""A command by the name of its module: ``python -m dlapp.tools status`` is ``dlapp-status``."""

import sys

from dlapp.tools.main import run_tool

sys.exit(run_tool(sys.argv[1:]))
