"""Identity with which dlapp uses a cluster's services, and its credentials: one value, passed to all users of it.

It is created once, at the start of a process (`own_login`, or from a container's launch specification); no other code
reads the environment for it, and none stores one globally. The tokens that YARN itself issues for single services, the
ApplicationMaster's and the nodes', are `dlapp.hadoop.tokens.Token`s and are passed in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlapp.errors import ConfigError
from dlapp.value import Value, field

USER_VARIABLE = "HADOOP_USER_NAME"


class Login(Value):
    """Identity for a Hadoop server.

    Args:
        user: the Hadoop user; with simple authentication the servers trust this name.
        hdfs_token: a delegation token in WebHDFS's form; None: simple authentication.
    """

    user: str
    hdfs_token: str | None = field(default=None, repr=False)

    @property
    def query(self) -> dict[str, str]:
        """Return the query parameters that a Hadoop web server requires."""
        return {"user.name": self.user}

    @property
    def webhdfs_query(self) -> dict[str, str]:
        """Return the query parameters that a NameNode's web server requires."""
        return self.query if self.hdfs_token is None else {"delegation": self.hdfs_token}

    def as_user(self, user: str) -> Login:
        """Return the login for access to data of ``user``; with simple authentication, that user's own."""
        return self if user == self.user else Login(user)


def own_login(environ: Mapping[str, str] = os.environ) -> Login:
    """Return the identity of this process: $HADOOP_USER_NAME, or the operating system's user.

    Raises:
        ConfigError: there is no name.
    """
    import pwd

    if name := environ.get(USER_VARIABLE):
        return Login(name)
    try:
        return Login(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        raise ConfigError(f"user {os.geteuid()} has no name, and YARN requires one: set {USER_VARIABLE}") from None
