"""The process of a server command: end signals, events on stdout, heap limits, log filter; TLS and access control.

@security_options
def command(..., security: SecurityOptions) -> None:
    server = Server(..., tls=security.tls(), acl=security.acl())
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import click

from tiermq.cli.conventions import EXIT_CANNOT_START
from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, BadTierUrl, TierCredentials, TierMQError, TierUnavailable, install_hint
from tiermq.message.hosts import LOOPBACK
from tiermq.remoting.permissions import RELOAD_S, AccessFile, Account
from tiermq.remoting.security_promises import ACL, CERTIFICATE, ENFORCING, TRUSTED
from tiermq.remoting.server import RemotingServer, ThreadedServer
from tiermq.remoting.tls import KEY_PASSWORD, TlsMode, TlsSettings, can_make_self_signed
from tiermq.settings import Promise, ServerConfiguration, settings_of, unkept_in_file

NUMBERS = (signal.SIGTERM, signal.SIGINT)
AGAIN_S = 1.0
STDERR = 2
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS = 2
OWN_MAP_BYTES = 1 << 20
"""Buffers of this size are mapped separately; glibc's own threshold grows up to 32 MB."""
COMPLAINT_REST_S = 60.0
_TROUBLES = (TierUnavailable, TierCredentials, BadTierUrl)


def notify_manager(state: str) -> None:
    """Notify the service manager that started this process, if it wants to know (systemd's Type=notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        _log.warning("the service manager at %s was not notified of %s: %s", address, state, error)


class Watchdog:
    """Notifies the service manager again and again while the servers' loops run (systemd's WatchdogSec).

    A beat is sent when every loop has run a call that was queued for it: a loop that hangs sends none, and the manager
    ends the process. A server that was stopped meanwhile (a change of roles) is left out from the next beat on.
    """

    def __init__(self, servers: Callable[[], Sequence[RemotingServer]]) -> None:
        self._servers = servers
        wanted_us, of = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_wanted = wanted_us.isdigit() and int(wanted_us) > 0 and of in ("", str(os.getpid()))
        self.period_s = int(wanted_us) / 3e6 if is_wanted else None
        """None: no supervisor watches."""
        self._next_s = time.monotonic()

    def look(self) -> None:
        """Begin a beat if it is time."""
        if self.period_s is None or (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + self.period_s
        servers = self._servers()
        answered, lock = [0], threading.Lock()  # Of this beat.

        def count() -> None:
            with lock:
                answered[0] += 1
                is_last = answered[0] == len(servers)
            if is_last:
                notify_manager("WATCHDOG=1")

        for server in servers:
            server.call_threadsafe(count)
        if not servers:
            notify_manager("WATCHDOG=1")


class EndSignals:
    """SIGTERM, SIGINT and SIGHUP for a server command to wait for.

        with EndSignals() as ending:
            start()
            ending.wait(on_hangup=reload)

    SIGTERM and SIGINT end the wait. SIGHUP calls `on_hangup`, in the waiting thread, and the wait continues.

    Python runs a handler in the main thread, between two of its instructions. A signal that comes at the moment when
    that thread is about to block on a lock, or that the kernel gives to another thread, does not wake it: the process
    would not stop. So the main thread waits on a socket, to which the interpreter writes
    the number of each signal when it arrives, in any thread. A few hundred signals that were not read yet fill the
    socket, and the interpreter drops the numbers of further ones: an end signal is noted by its handler, too.

    Shutdown may take a while (last uploads). Another signal then ends the process at once,
    unless it comes within AGAIN_S of the first: some programs, GNU timeout among them, send theirs twice. It does so
    although stderr may be closed, or a pipe that is full.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._mine, self._written = socket.socketpair()
        self._has_ended = False
        self._listener: threading.Thread | None = None
        self._written.setblocking(False)  # Required by the interpreter.

    def __enter__(self) -> Self:
        # A warning for each dropped number would fill a stderr that is not read, and block the process.
        self._fd_before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        for number in (*NUMBERS, signal.SIGHUP):
            # Without a handler the process would end at once.
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: object) -> None:
        if number in NUMBERS:
            self._has_ended = True

    def wait(
        self,
        on_hangup: Callable[[], None],
        acl: AccessFile | None = None,
        servers: Callable[[], Sequence[RemotingServer]] = lambda: (),
    ) -> None:
        """Wait for an end signal. Other signals that have handlers are ignored.

        Meanwhile `acl` looks for a changed file: without that a broken one would be reported at the next request only.
        The service manager is notified when this begins and ends, of reloads, and that the loops of `servers` run.
        """
        notify_manager("READY=1")
        watchdog = Watchdog(servers)
        rests_s = [each for each in (None if acl is None else RELOAD_S, watchdog.period_s) if each is not None]
        self._mine.settimeout(min(rests_s, default=None))
        while not set(came := self._signals(acl, watchdog)) & set(NUMBERS) and not self._has_ended:
            if signal.SIGHUP in came:
                notify_manager(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
                on_hangup()
                notify_manager("READY=1")
        self._mine.settimeout(None)
        self._listener = threading.Thread(target=self._end_at_once, args=(time.monotonic(),), daemon=True)
        self._listener.start()
        notify_manager("STOPPING=1")

    def _signals(self, acl: AccessFile | None, watchdog: Watchdog) -> bytes:
        while True:
            watchdog.look()
            try:
                return self._mine.recv(64)
            except TimeoutError:
                if acl is not None:
                    acl.look()

    def _end_at_once(self, first_s: float) -> None:
        """During shutdown: a repeated signal ends the process."""
        while numbers := self._mine.recv(64):
            again = set(numbers) & set(NUMBERS)
            if again and time.monotonic() - first_s >= AGAIN_S:
                try:
                    # Not through sys.stderr, whose lock the thread that hangs may hold.
                    if select.select([], [STDERR], [], 0)[1]:
                        os.write(STDERR, b"ended at once by a second signal; the store recovers at its next start\n")
                finally:
                    os._exit(128 + min(again))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._written.close()
        if self._listener is not None:
            self._listener.join()  # It has read end of file.
        self._mine.close()


def say_event(as_json: bool, text: str, **values: object) -> None:
    """Print the text, or the values as JSON. A server whose lines cannot be written continues to serve."""
    try:
        click.echo(json.dumps(values) if as_json else text)
        sys.stdout.flush()
    except OSError:  # A closed reader (`serve | head -1`), a full disk.
        drop_stdout()


def drop_stdout() -> None:
    """Discard all further output, and what could not be written before."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def limit_heaps() -> bool:
    """Keep the heap of a long-running process close to its live size. Call before threads start.

    glibc gives up to eight heaps per processor to threads, and each keeps what its threads once needed: a broker of
    fifty threads that held 30 MB of Python objects and a 32 MB read cache had 250 MB of them after ten minutes. Two
    heaps serve threads that the interpreter lets run one at a time, and buffers of a megabyte go back to the system
    when they are freed. False if nothing was set: another C library, or glibc's own variables
    (`MALLOC_ARENA_MAX`, …) are set.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_ARENA_MAX, ARENAS)) and bool(mallopt(M_MMAP_THRESHOLD, OWN_MAP_BYTES))


class TierTroubleFilter(logging.Filter):
    """One line a minute about an unavailable tier, however many parts of a broker log it.

    Uploads, the key index, retention and timers each detect that a bucket is unavailable, and each logs it
    every few seconds. Their lines have the error as an argument; of those this filter lets through the first, and then
    one in every minute, with the number left out. A line that is logged once, and must be seen, has the
    error's text as an argument. For a handler. Any thread; its lock guards the count.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._said_at_s: float | None = None
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if not any(isinstance(each, _TROUBLES) for each in arguments):
            return True
        with self._lock:
            now_s = self._clock.monotonic()
            if self._said_at_s is not None and now_s - self._said_at_s < COMPLAINT_REST_S:
                self._left_out += 1
                return False
            left_out, self._left_out, self._said_at_s = self._left_out, 0, now_s
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines about the tier were left out)", ()
        return True


_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=ServerConfiguration)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The options of the command line."""

    mode: TlsMode | None = None
    """None: permissive, or disabled if no certificate is given and none can be created."""
    certificate: Path | None = None
    key: Path | None = None
    trusted: Path | None = None
    accounts: Path | None = None
    key_password: str | None = None

    def tls(self) -> TlsSettings:
        """Raises BadConfig for options that do not go together."""
        if self.certificate is None and self.key is not None:
            raise BadConfig("--tls-key: expected --tls-cert beside it, found none")
        if self.trusted is not None and (self.mode is not TlsMode.ENFORCING or self.certificate is None):
            raise BadConfig(
                "--tls-trusted: expected --tls enforcing and --tls-cert beside it, since a client that may connect "
                "without TLS needs no certificate, and one that cannot check the server shows its own to any server"
            )
        return TlsSettings(
            self.chosen_mode,
            self.certificate,
            self.key,
            self.key_password,
            trusted_path=self.trusted,
            client_must_authenticate=self.trusted is not None,
        )

    @property
    def chosen_mode(self) -> TlsMode:
        if self.mode is not None:
            return self.mode
        return TlsMode.PERMISSIVE if self.certificate is not None or can_make_self_signed() else TlsMode.DISABLED

    @property
    def shown(self) -> str:
        """The security values of the ready line."""
        if self.mode is None and self.chosen_mode is TlsMode.DISABLED:
            return f"TLS off (no --tls-cert; one is made with cryptography: {install_hint('broker')})"
        if self.trusted is not None:
            return "TLS enforcing, clients need a certificate"
        return f"TLS {self.chosen_mode.value}"

    @property
    def kept(self) -> set[str]:
        """The promises of a settings file that the options keep."""
        said = {
            ACL: self.accounts is not None,
            ENFORCING: self.mode is TlsMode.ENFORCING,
            CERTIFICATE: self.certificate is not None,
            TRUSTED: self.trusted is not None,
        }
        return {name for name, is_given in said.items() if is_given}

    def is_open(self, bind_address: str) -> bool:
        """Whether every machine that reaches a server at this address may use it."""
        return not (self.accounts or self.trusted) and bind_address not in (LOOPBACK, "localhost", "::1")

    def acl(self, also: Account | None = None) -> AccessFile | None:
        """`also` is an account that the file does not have. Raises BadConfig for an invalid file."""
        return None if self.accounts is None else AccessFile(self.accounts, also=also)


OPEN = "open to every machine that reaches it (no --acl)"
ACCEPT_WEAKER = click.option(
    "--accept-weaker", is_flag=True, help="Start even if the file asks for guarantees that TierMQ does not give."
)


def report_settings(command: str, ignored: Sequence[str], unknown: Sequence[str]) -> None:
    """Print on stderr which settings of a file have no effect, and which no server of RocketMQ has."""
    for words, names in (("settings without effect here", ignored), ("unknown settings", unknown)):
        if names:
            click.echo(f"tiermq {command}: {words}: {', '.join(names)}", err=True)


def check_weaker(command: str, config_file: Path | str | None, weaker: Sequence[str], *, accepted: bool) -> None:
    """Refuse what a settings file asks for and is not provided, or report it where the operator has accepted that.

    Raises BadConfig.
    """
    if weaker and not accepted:
        listed = "\n  ".join([f"{config_file} asks for what is not provided:", *weaker])
        raise BadConfig(f"{listed}\nTo start without it: --accept-weaker")
    for each in weaker:
        click.echo(f"tiermq {command}: accepted although not provided: {each}", err=True)


def give_up(command: str, text: object) -> NoReturn:
    """End a server command that cannot start."""
    click.echo(f"tiermq {command}: {text}", err=True)
    sys.exit(EXIT_CANNOT_START)


def server_settings(
    command: str,
    kind: type[C],
    config_file: Path | None,
    promises: Mapping[str, Promise],
    security: SecurityOptions,
    *,
    accept_weaker: bool,
    **options: int | str | None,
) -> tuple[C, list[str]]:
    """Settings of a file, with options of the command line above them; and the keys that are no settings.

    A file that asks for what no option provides ends the command, unless less is accepted.
    """
    try:
        config, ignored = (kind(), []) if config_file is None else kind.from_file(config_file)
        given = {name: value for name, value in options.items() if value is not None}
        weaker = [] if config_file is None else unkept_in_file(config_file, promises, security.kept, _known(kind))
        check_weaker(command, config_file, weaker, accepted=accept_weaker)
        unkept = {re.split("[=:]", each)[0] for each in weaker}
        return config.with_settings(**given), [key for key in ignored if key not in promises or key in unkept]
    except (BadConfig, OSError, UnicodeDecodeError) as error:
        give_up(command, error)


def _known(kind: type[ServerConfiguration]) -> set[str]:
    """Settings of a server, and those of a broker: one file may be for both."""
    from tiermq.broker.rocketmq_settings import ALIASES, NAMES
    from tiermq.broker.settings_file import PARTS

    return {*NAMES, *ALIASES, *(each.property_name for one in (kind, *PARTS) for each in settings_of(one).values())}


def run_server(
    command: str,
    config: ServerConfiguration,
    ignored: Sequence[str],
    kind: type[ThreadedServer],
    make: Callable[[AccessFile | None, ExitStack], tuple[ThreadedServer, str, dict[str, object]]],
    security: SecurityOptions,
    as_json: bool,
) -> None:
    """Run a server of that kind until an end signal. `make` returns it, and words and values for the ready line.

    What `make` puts on the stack is closed behind the server. `ignored`: keys of the file that are no settings.
    """
    if ignored:
        text = f"settings that a {kind.NAME} here does not have: {', '.join(ignored)}"
        say_event(as_json, text, event="ignored", settings=ignored)
    # Handle signals first, so that none is lost during the start.
    with EndSignals() as ending:
        with ExitStack() as opened:
            try:
                acl = security.acl()
                server, words, values = make(acl, opened)
                server.start()
            except (OSError, TierMQError) as error:
                give_up(command, f"cannot start at {config.bind_address}:{config.listen_port}: {error}")
            opened.callback(server.stop)
            is_open = security.is_open(config.bind_address)
            say_event(
                as_json,
                f"{kind.NAME} ready at {config.bind_address}:{server.port}, {words}{f', {OPEN}' if is_open else ''}",
                event="ready",
                address=config.bind_address,
                port=server.port,
                open=is_open,
                **values,
            )
            ending.wait(
                on_hangup=lambda: reload_security([server.server], acl, as_json),
                acl=acl,
                servers=lambda: [server.server],
            )
        say_event(as_json, f"{kind.NAME} ended", event="ended")


def reload_security(servers: Sequence[RemotingServer], acl: AccessFile | None, as_json: bool) -> None:
    """Read accounts and certificates again, as SIGHUP asks; an invalid file leaves the previous state."""
    is_read = acl is None or acl.reload()
    for server in servers:
        try:
            server.reload_tls()
        except BadConfig as error:
            _log.error("%s; the certificate read before stays in force", error)
            return
    if is_read:
        say_event(as_json, "read accounts and certificates again", event="reloaded")


def security_options(command: F) -> F:
    """Add the options to a command, which receives them as `security`."""

    @functools.wraps(command)
    def with_security(
        *arguments: Any,
        tls_mode: str | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_trusted: Path | None,
        tls_key_password: str | None,
        acl_file: Path | None,
        **others: Any,
    ) -> Any:
        mode = None if tls_mode is None else TlsMode(tls_mode)
        security = SecurityOptions(mode, tls_cert, tls_key, tls_trusted, acl_file, tls_key_password)
        return command(*arguments, security=security, **others)

    options = (
        click.option(
            "--tls",
            "tls_mode",
            type=click.Choice([mode.value for mode in TlsMode]),
            help="Whether peers may, must or must not use TLS, on the same port [permissive].",
        ),
        click.option("--tls-cert", type=_FILE, help="PEM certificate [self-signed, new at each start, for tests]."),
        click.option("--tls-key", type=_FILE, help="PEM key of the certificate [in the same file]."),
        click.option("--tls-key-password", envvar=KEY_PASSWORD, hidden=True),
        click.option(
            "--tls-trusted",
            "--tls-trust",
            "tls_trusted",
            type=_FILE,
            help="Require client certificates signed by one of these (PEM). Needs --tls enforcing and --tls-cert.",
        ),
        click.option(
            "--acl",
            "acl_file",
            type=_FILE,
            help="Accounts and what they may do: TOML, or RocketMQ's plain_acl.yml [everybody may do everything].",
        ),
    )
    made: Any = with_security
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated
