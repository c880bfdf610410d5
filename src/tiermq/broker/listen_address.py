"""Where a broker listens, settled before its store opens: message ids hold the address and the real port.

    port       every client                                 port - 2   clients with `vipChannelEnabled`, the same server

Names are resolved here, once; a record holds addresses.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from tiermq.broker.broker_config import BrokerConfig, FastListenPort
from tiermq.errors import BadConfig, CannotListen, install_hint

FAST_PORT_BELOW = 2
"""How far RocketMQ's clients subtract from a broker's port with `vipChannelEnabled`."""
PAIR_TRIES = 1_000
LISTEN_PORT = "listenPort or --port"
GRPC_MODULES = ("google.protobuf", "hpack")
"""What serving gRPC imports."""


class BoundSockets(NamedTuple):
    """A broker's sockets, bound and not listening yet."""

    main: socket.socket
    fast: socket.socket | None
    why_not_fast: str
    """The reason where there is no fast socket."""
    grpc: socket.socket | None = None
    """For clients that speak gRPC, if it is served."""

    @property
    def sockets(self) -> list[socket.socket]:
        """Those for remoting."""
        return [self.main] if self.fast is None else [self.main, self.fast]

    def close(self) -> None:
        for each in (*self.sockets, *([] if self.grpc is None else [self.grpc])):
            each.close()


def broker_sockets(config: BrokerConfig) -> BoundSockets:
    """The sockets of a broker. Raises OSError when one needed is taken, BadConfig without what gRPC needs."""
    grpc = grpc_socket(config)
    try:
        made = bound_sockets(config.bind_address, config.listen_port, config.fast_listen_port)
    except BaseException:
        if grpc is not None:
            grpc.close()
        raise
    return made._replace(grpc=grpc)


def bound_sockets(host: str, port: int, fast: FastListenPort) -> BoundSockets:
    """The socket of `port` (0 takes a free one) and that of two below. Raises OSError when one needed is taken."""
    if fast is FastListenPort.OFF:
        with port_of(LISTEN_PORT, host, port):
            return BoundSockets(bound_socket(host, port), None, "fastListenPort is OFF")
    if port == 0:
        if fast is FastListenPort.ON:
            return _free_pair(host)
        return BoundSockets(bound_socket(host, port), None, "the port was chosen freely")
    with contextlib.ExitStack() as undo:
        with port_of(LISTEN_PORT, host, port):
            main = undo.enter_context(bound_socket(host, port))
        below, why_not = None, f"there is no port below {port}"
        if port > FAST_PORT_BELOW:
            try:
                with port_of(f"fastListenPort=ON, {FAST_PORT_BELOW} below listenPort,", host, port - FAST_PORT_BELOW):
                    below, why_not = bound_socket(host, port - FAST_PORT_BELOW), ""
            except OSError as error:
                if fast is FastListenPort.ON:
                    raise
                why_not = f"cannot listen at {port - FAST_PORT_BELOW}: {os.strerror(error.errno or 0)}"
        elif fast is FastListenPort.ON:
            raise BadConfig(f"fast_listen_port: expected a listen_port above {FAST_PORT_BELOW}, found {port}")
        undo.pop_all()
    return BoundSockets(main, below, why_not)


def grpc_socket(config: BrokerConfig) -> socket.socket | None:
    """The socket for gRPC, None where it is off. Raises OSError when it is taken, BadConfig without its libraries."""
    if not config.grpc_server_port:
        if config.grpc_proxies:
            raise BadConfig("grpcProxyProtocolPeers: expected grpcServerPort, or --grpc-port, beside it, found neither")
        return None
    try:
        for name in GRPC_MODULES:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"grpcServerPort: expected the packages protobuf and hpack, found no {error.name}: {install_hint('grpc')}"
        ) from error
    with port_of("grpcServerPort or --grpc-port", config.bind_address, config.grpc_server_port):
        return bound_socket(config.bind_address, config.grpc_server_port)


def _free_pair(host: str) -> BoundSockets:
    with contextlib.ExitStack() as passed_over:  # Kept until a pair is found: the system would give them again.
        for _ in range(PAIR_TRIES):
            main = bound_socket(host, 0)
            try:
                return BoundSockets(main, bound_socket(host, main.getsockname()[1] - FAST_PORT_BELOW), "")
            except OSError:
                passed_over.enter_context(main)
    raise BadConfig(f"listen_port 0: expected two free ports {FAST_PORT_BELOW} apart, found none; name a port")


@contextlib.contextmanager
def port_of(setting: str, host: str, port: int) -> Iterator[None]:
    """Raises CannotListen for an OSError of a listener: a broker has several ports, and each has its setting."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        found = CannotListen(f"{setting} of the broker, {host}:{port}: cannot listen there: {reason}")
        found.errno = error.errno
        raise found from error


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen yet; port 0 takes a free one. Raises OSError when it is taken."""
    family, kind, protocol, _, address = _resolved(host, port, socket.AI_PASSIVE)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A broker that restarts takes its port at once.
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def store_host(host: str, port: int) -> str:
    """The address and port as a record keeps them: `1.2.3.4:10911` or `[::1]:10911`. Raises BadConfig."""
    found = _resolved(host, port, 0)
    plain = [each for each in found if each[0] == socket.AF_INET] or found
    address = str(plain[0][4][0])
    return f"[{address}]:{port}" if plain[0][0] == socket.AF_INET6 else f"{address}:{port}"


def _resolved(
    host: str, port: int, flags: int
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=flags)
    except OSError as error:
        raise BadConfig(f"expected an address of this machine, or a name of one, found {host!r}: {error}") from error
    return found  # type: ignore[return-value]  # Another form is for builds without IPv6.
