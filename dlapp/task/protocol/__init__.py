"""Payload protocol: the files in DLAPP_DIR by which a task and its payload exchange what they know.

The payload can write every file there, and replace it. So nothing here follows a link, waits for a file, or reads more
than a bound; and what a payload says decides nothing but what is shown of it and what its own application does.
"""
