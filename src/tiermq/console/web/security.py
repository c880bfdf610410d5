"""Who may see and change what over HTTP: hosts, log-in, sessions, tokens against forged requests, headers.

    Host           only names that the console was started with, so that a page of another site cannot reach it by DNS
    log-in         an account of the brokers; its own permissions count, as each request is signed with its secret
    session        a random cookie with our tag, HttpOnly and SameSite=Strict; what a log-in gave is kept in memory
    form token     HMAC of the session's cookie, in each form and in the header X-TierMQ-Token
    API            a changing request is JSON, which no form sends, with that token or the header Authorization

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiermq.client.cluster_client import ClusterClient
from tiermq.console.sources import Sources, Visit, answering
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
CHECKED_S = 15.0
"""What brokers answered about accounts holds for so long."""
FAILURES_MAX = 10
FAILURES_S = 60.0
FAILED_MAX = 10_000
"""Pairs of account and address that are remembered."""
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
    """One browser that has logged in."""

    credentials: Credentials
    is_administrator: bool
    used_s: float


@dataclass(slots=True)
class Tries:
    """Log-ins of one account from one address; made one after the other, so that guesses at once are counted."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    failed_s: list[float] = field(default_factory=list)


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
        self.sources = sources
        self._hosts = hosts
        self._accounts = accounts
        self._allow_changes = allow_changes
        self._key = secrets.token_bytes(32)
        self._brokers_checked_s: float | None = None
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._tries: OrderedDict[tuple[str, str], Tries] = OrderedDict()
        self._accepted: OrderedDict[Credentials, tuple[float, bool]] = OrderedDict()
        self._needs_log_in: bool | None = True if accounts is not None else None if sources.has_wire else False

    @property
    def needs_log_in(self) -> bool:
        """Whether accounts are in use. Brokers are asked, again and again until one of them wants an account: they may
        be started with accounts later. Until the first answers, files are not shown.
        """
        now_s = self.sources.clock.monotonic()
        is_known = self._brokers_checked_s is not None and now_s - self._brokers_checked_s < CHECKED_S
        if self.sources.has_wire and not self._needs_log_in and not is_known:
            cluster = self.sources.cluster(None)
            try:
                cluster.run(_look(cluster.client))
                self._needs_log_in, self._brokers_checked_s = False, now_s
            except RequestRefused as error:
                self._needs_log_in = error.code == ResponseCode.NO_PERMISSION
                self._brokers_checked_s = now_s
            except RemotingError:
                pass  # None answers: it is as it was.
        return self.sources.has_files if self._needs_log_in is None else self._needs_log_in

    def check_host(self, request: Request) -> None:
        """Raises Refused for a Host header that is none of ours."""
        host = request.headers.get("host", "")
        name = host[: host.rfind(":")] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]").lower() not in self._hosts:
            raise Refused(421, f"expected one of the hosts {', '.join(sorted(self._hosts))}, found {name[:80]!r}")

    # Sessions

    def cookie_of(self, request: Request) -> str | None:
        """The cookie that this console gave the browser, if it did. Nothing is kept of browsers without a log-in, so
        that no number of them shuts out others.
        """
        cookie = request.cookies.get(COOKIE, "")
        name, _, tag = cookie.partition(".")
        return cookie if hmac.compare_digest(self._tag("cookie", name).encode(), tag.encode()) else None

    def new_cookie(self) -> str:
        name = secrets.token_urlsafe(24)
        return f"{name}.{self._tag('cookie', name)}"

    def session(self, cookie: str | None) -> Session | None:
        """That of a browser that has logged in not too long ago."""
        now_s = self.sources.clock.monotonic()
        with self._lock:
            found = self._sessions.get(cookie or "")
            if cookie is None or found is None:
                return None
            if now_s - found.used_s > SESSION_S:
                del self._sessions[cookie]
                return None
            found.used_s = now_s
            self._sessions.move_to_end(cookie)
            return found

    def open_session(self, cookie: str, credentials: Credentials, *, is_administrator: bool) -> None:
        now_s = self.sources.clock.monotonic()
        with self._lock:
            self._sessions[cookie] = Session(credentials, is_administrator, now_s)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)

    def close_session(self, cookie: str | None) -> None:
        with self._lock:
            self._sessions.pop(cookie or "", None)

    def token_of(self, cookie: str) -> str:
        return self._tag("token", cookie)

    def _tag(self, kind: str, text: str) -> str:
        return hmac.new(self._key, f"{kind} {text}".encode(), hashlib.sha256).hexdigest()

    def check_token(self, cookie: str | None, found: str) -> None:
        """Raises Refused for a form that this console did not make for this browser."""
        if cookie is None or not hmac.compare_digest(self.token_of(cookie).encode(), found.encode()):
            raise Refused(403, "expected the token of a form of this console, found another: load the page again")

    # Accounts

    def log_in(self, request: Request, access_key: str, secret_key: str) -> tuple[Credentials, bool]:
        """The credentials, and whether the account is an administrator. Raises Refused.

        Failures count by account and address: strangers who guess lock out no other visitor.
        """
        now_s = self.sources.clock.monotonic()
        who = _address_of(request), access_key
        with self._lock:
            tries = self._tries.setdefault(who, Tries())
            self._tries.move_to_end(who)
            while len(self._tries) > FAILED_MAX:
                self._tries.popitem(last=False)
        with tries.lock:
            tries.failed_s = [at for at in tries.failed_s if now_s - at < FAILURES_S]
            if len(tries.failed_s) >= FAILURES_MAX:
                raise Refused(429, "too many failed log-ins of this account; try again in a minute")
            try:
                return self._checked(access_key, secret_key)
            except Refused:
                tries.failed_s.append(now_s)
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
        now_s = self.sources.clock.monotonic()
        with self._lock:
            at_s, is_administrator = self._accepted.get(credentials, (now_s - CHECKED_S, False))
        if now_s - at_s < CHECKED_S:
            return credentials, is_administrator
        try:
            # Connections of its own: strangers who guess close those of no visitor.
            is_administrator = self.sources.access(credentials).run(_is_administrator)
        except RequestRefused as error:
            raise Refused(403, "expected the access key and the secret key of an account, found others") from error
        with self._lock:
            self._accepted[credentials] = now_s, is_administrator
            while len(self._accepted) > SESSIONS_MAX:
                self._accepted.popitem(last=False)
        return credentials, is_administrator

    def _now_of(self, session: Session) -> tuple[Credentials | None, bool]:
        """The account of a session as it is now: it may be gone, or have another secret, or be no administrator."""
        try:
            _, session.is_administrator = self._checked(session.credentials.access_key, session.credentials.secret_key)
        except Refused:
            return None, False
        except RemotingError:
            pass  # The brokers do not answer: it is as they said last.
        return session.credentials, session.is_administrator

    def visit(self, request: Request, session: Session | None) -> Visit:
        """Who asks. Raises Refused with 401 before a log-in."""
        actor = _address_of(request)
        credentials, is_administrator = self._basic(request)
        if credentials is None and session is not None:
            credentials, is_administrator = self._now_of(session)
        if self.needs_log_in:
            if credentials is None:
                raise Refused(401, "expected a log-in with an account of the brokers, found none")
            return Visit(
                self.sources,
                f"{credentials.access_key} at {actor}",
                credentials,
                is_administrator,
                self._allow_changes,
            )
        return Visit(self.sources, actor, None, True, self._allow_changes)

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


async def _look(client: ClusterClient) -> list[str]:
    """The brokers that serve this account. Raises RequestRefused of one that does not, RemotingError without any."""
    masters = await client.masters()
    here = sorted((await answering(client, masters)).values())
    for address in here:
        await client.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    if not here:
        raise RemotingError(f"expected an answer of {', '.join(masters)}, found none")
    return here


async def _is_administrator(client: ClusterClient) -> bool:
    """Whether the account may ask for what only administrators may. Raises RequestRefused for a wrong signature."""
    for address in await _look(client):
        try:
            await client.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return False
    return True
