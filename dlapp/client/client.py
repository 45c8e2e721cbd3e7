"""The client of dlapp: one method for each operation of the commands."""

from __future__ import annotations

from dlapp.client.operations.submission import Submitter


class Client(Submitter):
    """Operations of one user on applications.

    Args:
        config: the configuration; None reads the configuration files and DLAPP_* variables of the process.
        cluster: the engine to submit to, instead of the configured one. Submitted applications are found on any engine.
        engine: an existing engine to use for everything; None to create the configured ones.
        note: called once if something keeps applications from running: a full disk of this machine's state; and with
            the application that a number means, if several have it.

    Raises:
        ConfigError: the configuration is invalid.
        UsageError: it names an unknown engine.
    """
