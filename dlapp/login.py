"""Identity with which dlapp uses a cluster's services, and its proof: one value, which is passed to all that need it.

It is made once, where a process begins (`own_login`, or what a container was told); nothing below looks into the
environment for it, and nothing keeps one for others. The proofs of single services that YARN itself hands out, of an
ApplicationMaster and of nodes, are `dlapp.hadoop.tokens.Token`s and go the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlapp.errors import ConfigError
from dlapp.value import Value, field

USER_VARIABLE = "HADOOP_USER_NAME"


class Login(Value):
    """Identity for a server of Hadoop.

    Args:
        user: the Hadoop user; with simple authentication the servers take our word for it.
        hdfs_token: a delegation token as WebHDFS takes it; None: simple authentication.
    """

    user: str
    hdfs_token: str | None = field(default=None, repr=False)

    @property
    def query(self) -> dict[str, str]:
        """Parameters that a web server of Hadoop requires in a request's query."""
        return {"user.name": self.user}

    @property
    def webhdfs_query(self) -> dict[str, str]:
        """Parameters that a NameNode's web server requires."""
        return self.query if self.hdfs_token is None else {"delegation": self.hdfs_token}

    def as_user(self, user: str) -> Login:
        """The login by which something of ``user``'s is reached; with simple authentication, that one's own."""
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
