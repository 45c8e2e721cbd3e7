"""Payload protocol: the files in DLAPP_DIR through which a task and its payload exchange information.

The payload can write or replace every file there. So this code never follows a link, waits for a file, or reads more
than a bound; and the payload's reports only affect what is shown of it and its own application.
"""
