"""A command by the name of its module: ``python -m dlapp.tools status`` is ``dlapp-status``."""

import sys

from dlapp.tools.main import find_word, load_command

name = sys.argv.pop(1)
load_command(find_word(name) or name)()
