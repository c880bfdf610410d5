"""Who may see and change what over HTTP: hosts, log-in, sessions, tokens against forged requests, headers.

    Host           only names that the console was started with, so that a page of another site cannot reach it by DNS
    log-in         an account of the brokers; its own permissions count, as each request is signed with its secret
    session        a random cookie, HttpOnly and SameSite=Strict, kept in memory; nothing of the account is in it
    form token     HMAC of the session's cookie, in each form and in the header X-TierMQ-Token
    API            a changing request needs that token, or the header Authorization, which no form of another site sends

Invariants: where accounts are in use nothing is shown before a log-in; an account that is no administrator reads by
brokers only, never files; a secret is in the memory of this process, and in no page, log or cookie.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiermq.client.cluster_client import ClusterClient
from tiermq.console.sources import Sources, Visit
from tiermq.errors import RemotingError, RequestRefused
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.permissions import AccessFile, Credentials

if TYPE_CHECKING:
    from starlette.requests import Request

COOKIE = "tiermq_console"
TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
TOKEN_HEADER = "x-tiermq-token"  # noqa: S105 - the name of a header
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1_000
FAILURES_MAX = 10
FAILURES_S = 60.0
FAILED_MAX = 10_000
"""Accounts with failures that are remembered."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(slots=True)
class Session:
    """One browser. Without credentials: one that has not logged in, or need not."""

    used_s: float
    credentials: Credentials | None = None
    is_administrator: bool = False


class Refused(Exception):
    """A request that is not served: a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gate:
    """See the module. Any thread may call."""

    def __init__(
        self,
        sources: Sources,
        *,
        hosts: frozenset[str],
        accounts: AccessFile | None = None,
        allow_changes: bool = False,
    ) -> None:
        """`accounts`: those of the broker in this process; without them brokers decide about a log-in."""
        self._sources = sources
        self._hosts = hosts
        self._accounts = accounts
        self._allow_changes = allow_changes
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[tuple[str, str], list[float]] = OrderedDict()
        self._needs_log_in: bool | None = True if accounts is not None else None if sources.has_wire else False

    @property
    def needs_log_in(self) -> bool:
        """Whether accounts are in use. Brokers are asked until one answers; until then files are not shown."""
        if self._needs_log_in is None:
            try:
                self._sources.cluster(None).run(_look(self._sources.cluster(None).client))
                self._needs_log_in = False
            except RequestRefused as error:
                self._needs_log_in = error.code == ResponseCode.NO_PERMISSION
            except RemotingError:
                return self._sources.has_files  # Files stay closed until a broker reports no accounts.
        return self._needs_log_in

    def check_host(self, request: Request) -> None:
        """Raises Refused for a Host header that is none of ours."""
        host = request.headers.get("host", "")
        name = host[: host.rfind(":")] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]").lower() not in self._hosts:
            raise Refused(421, f"expected one of the hosts {', '.join(sorted(self._hosts))}, found {name[:80]!r}")

    # Sessions

    def session(self, request: Request) -> tuple[str, Session | None]:
        """The cookie's value, or a new one, and its session if it is known and not too old."""
        cookie = request.cookies.get(COOKIE, "")
        now_s = self._sources.clock.monotonic()
        with self._lock:
            found = self._sessions.get(cookie)
            if found is not None and now_s - found.used_s > SESSION_S:
                del self._sessions[cookie]
                found = None
            if found is None:
                return secrets.token_urlsafe(24), None
            found.used_s = now_s
            self._sessions.move_to_end(cookie)
            return cookie, found

    def open_session(
        self, cookie: str, credentials: Credentials | None = None, *, is_administrator: bool = False
    ) -> None:
        with self._lock:
            self._sessions[cookie] = Session(self._sources.clock.monotonic(), credentials, is_administrator)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)

    def close_session(self, cookie: str) -> None:
        with self._lock:
            self._sessions.pop(cookie, None)

    def token_of(self, cookie: str) -> str:
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def check_token(self, cookie: str, found: str) -> None:
        """Raises Refused for a form that this console did not make for this browser."""
        if not hmac.compare_digest(self.token_of(cookie).encode(), found.encode()):
            raise Refused(403, "expected the token of a form of this console, found another: load the page again")

    # Accounts

    def log_in(self, request: Request, access_key: str, secret_key: str) -> tuple[Credentials, bool]:
        """The credentials, and whether the account is an administrator. Raises Refused.

        Failures count by account and address: strangers who guess lock out no other visitor.
        """
        now_s = self._sources.clock.monotonic()
        who = _address_of(request), access_key
        with self._lock:
            failures = [at for at in self._failures.get(who, ()) if now_s - at < FAILURES_S]
            if len(failures) >= FAILURES_MAX:
                raise Refused(429, "too many failed log-ins of this account; try again in a minute")
        try:
            return self._checked(access_key, secret_key)
        except Refused:
            with self._lock:
                self._failures[who] = [*failures, now_s]
                self._failures.move_to_end(who)
                while len(self._failures) > FAILED_MAX:
                    self._failures.popitem(last=False)
            raise

    def _checked(self, access_key: str, secret_key: str) -> tuple[Credentials, bool]:
        credentials = Credentials(access_key, secret_key)
        if self._accounts is not None:
            self._accounts.look()
            account = self._accounts.table.accounts.get(access_key)
            expected = account.secret_key if account is not None else secrets.token_hex(16)
            if not hmac.compare_digest(expected.encode(), secret_key.encode()) or account is None:
                raise Refused(403, "expected the access key and the secret key of an account, found others")
            return credentials, account.admin
        try:
            return credentials, self._sources.cluster(credentials).run(
                _is_administrator(self._sources.cluster(credentials).client)
            )
        except RequestRefused as error:
            raise Refused(403, "expected the access key and the secret key of an account, found others") from error

    def visit(self, request: Request, session: Session | None) -> Visit:
        """Who asks. Raises Refused with 401 before a log-in."""
        actor = _address_of(request)
        credentials, is_administrator = self._basic(request)
        if credentials is None and session is not None:
            credentials, is_administrator = session.credentials, session.is_administrator
        if self.needs_log_in:
            if credentials is None:
                raise Refused(401, "expected a log-in with an account of the brokers, found none")
            return Visit(
                self._sources,
                f"{credentials.access_key} at {actor}",
                credentials,
                is_administrator,
                self._allow_changes,
            )
        return Visit(self._sources, actor, None, True, self._allow_changes)

    def _basic(self, request: Request) -> tuple[Credentials | None, bool]:
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None, False
        try:
            access_key, colon, secret_key = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Refused(400, "expected Authorization: Basic with an access key and a secret key") from error
        if not colon:
            raise Refused(400, "expected Authorization: Basic with an access key and a secret key")
        if not self.needs_log_in:
            return None, False
        return self.log_in(request, access_key, secret_key)


def _address_of(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"


async def _look(client: ClusterClient) -> None:
    masters = (await client.master_table()).addresses
    for address in list(masters.values())[:1]:
        await client.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)


async def _is_administrator(client: ClusterClient) -> bool:
    """Whether the account may ask for what only administrators may. Raises RequestRefused for a wrong signature."""
    await _look(client)
    for address in (await client.masters()).values():
        try:
            await client.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return False
    return True
