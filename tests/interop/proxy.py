"""RocketMQ's proxy, fetched with Maven and run on loopback in cluster mode.

    with Proxy(name_server, scratch) as proxy:
        proxy.endpoints                     what gRPC clients are told

It stands between gRPC clients and the brokers of a name server, which are ours here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from interop.rocketmq import CLUSTER_NAME, VERSION, Distribution, Server, cache_directory, copy_jars, fetch, pom_of_all
from servers.loopback import free_ports

BOOT_LINE = "startup successfully"


def fetch_proxy(version: str = VERSION) -> Distribution:
    """Raises `Unavailable`."""
    root = cache_directory() / f"rocketmq-proxy-{version}"
    lib = root / "lib"
    if not lib.is_dir():
        copy_jars(root, lib, pom_of_all(["rocketmq-proxy"], version), f"RocketMQ's proxy {version}")
    return Distribution(version, lib, fetch(version).classes)


class Proxy:
    """Leaving the context stops it."""

    def __init__(self, distribution: Distribution, name_server: str, scratch: Path) -> None:
        grpc_port, remoting_port = free_ports(2)
        self.endpoints = f"127.0.0.1:{grpc_port}"
        (scratch / "conf").mkdir(parents=True, exist_ok=True)
        config = scratch / "conf" / "rmq-proxy.json"
        settings = {
            "rocketMQClusterName": CLUSTER_NAME,
            "namesrvAddr": name_server,
            "proxyMode": "cluster",
            "grpcServerPort": grpc_port,
            "remotingListenPort": remoting_port,
            "localServeAddr": "127.0.0.1",
            "enableACL": False,
        }
        config.write_text(json.dumps(settings))
        command = distribution.java(scratch, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config))
        command.insert(1, f"-Dcom.rocketmq.proxy.configPath={config}")
        self._server = Server(command, scratch / "proxy.out", BOOT_LINE)

    def __enter__(self) -> Self:
        self._server.await_boot()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop()
