"""The commands, a file each: parse, call `dlapp.client`, print. What they print is made in `display/`.

Nothing but click and `common` is imported before a command runs, so that ``--help`` is quick and ``dlapp-status``
pays only for what it shows.
"""
