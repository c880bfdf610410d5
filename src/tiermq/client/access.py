"""Access: where a cluster is and as whom it is asked.

Secrets come from the environment of the process that talks, never from a command line or a plan that travels:
ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, and TIERMQ_TLS_KEY_PASSWORD for the key of a client's certificate.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from tiermq.client.cluster_client import ClusterClient
from tiermq.errors import BadConfig
from tiermq.remoting.acl import Credentials
from tiermq.remoting.tls import ANY_SERVER, ClientTls

T = TypeVar("T")
ACCESS_KEY = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached."""

    name_servers: str
    access_key: str | None = None
    secret_key: str | None = None
    tls: bool = False
    certificates: ClientTls = ANY_SERVER
    """Any of them means TLS."""

    @classmethod
    def of_environment(cls, name_servers: str, *, tls: bool = False, certificates: ClientTls = ANY_SERVER) -> Self:
        """With the keys of this process's environment, if it has any."""
        return cls(name_servers, os.environ.get(ACCESS_KEY), os.environ.get(SECRET_KEY), tls, certificates)

    def client(self) -> ClusterClient:
        """Raises BadConfig for options that do not go together."""
        if (self.access_key is None) != (self.secret_key is None):
            raise BadConfig("expected both ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, found one of them")
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key)
        tls = self.certificates.context() if self.tls or self.certificates else None
        return ClusterClient(self.name_servers, credentials=credentials, tls=tls)

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """What the work gives, done with a client that is closed afterwards."""

        async def working() -> T:
            async with self.client() as cluster:
                return await work(cluster)

        return asyncio.run(working())
