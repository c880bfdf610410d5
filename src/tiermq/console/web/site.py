"""The site: pages, forms, the HTTP API and events, as one Starlette application over the catalogue.

    GET  /topics …            pages: an operation, then a template
    GET  /api/topic.list …    the same operation as JSON;  POST /api/topic.delete for what changes something
    POST /do/topic.delete     the same from a form of a page
    GET  /events/overview …   server-sent events: a part of a page, rendered again when it changed

Handlers are plain functions, which Starlette runs in its threads; only events are coroutines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, Undefined, select_autoescape
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiermq import __version__
from tiermq.console.catalogue import Kind, operations, run
from tiermq.console.operations.messages import Following
from tiermq.console.query_runs import TooManyQueries, client_has_left
from tiermq.console.sources import Visit
from tiermq.console.web import figures
from tiermq.console.web.openapi import openapi
from tiermq.console.web.pages import PAGES, Ask, spark_result
from tiermq.console.web.security import COOKIE, HEADERS, SESSION_S, TOKEN_FIELD, TOKEN_HEADER, Gate, Refused
from tiermq.errors import (
    BadConfig,
    BadHistory,
    BadRequest,
    ChangeRefused,
    RemotingError,
    RequestRefused,
    TierError,
    TierMQError,
)
from tiermq.remoting.codes import ResponseCode

HERE = Path(__file__).parent
FORM_BYTES_MAX = 1 << 20
EVENT_S = 2.0
STREAMS_MAX = 32
NAVIGATION = (
    ("/", "Overview"), ("/topics", "Topics"), ("/groups", "Groups"), ("/messages", "Messages"), ("/waiting", "Waiting"),
    ("/history", "Time travel"), ("/tier", "Tier"), ("/sql", "SQL"), ("/settings", "Settings"), ("/api", "API"),
)  # fmt: skip
NOT_BY_LINK = frozenset({"query", "hours", "text", "tag", "begin", "end"})
"""Parameters that make work: queries and searches."""
RUNS_QUERIES = frozenset({"/sql", "/api/sql.run", "/api/sql.spark", "/messages", "/api/message.find", "/tier/orphans",
                          "/api/tier.orphans", "/waiting", "/api/delayed.list"})  # fmt: skip
"""What ends when its client leaves."""
PAGES_ONLY = ("/api/", "/do/", "/events/")
"""What no page of another site has a reason to ask for."""
_log = logging.getLogger(__name__)


class Site:
    """See the module."""

    def __init__(self, gate: Gate, *, allow_changes: bool = False) -> None:
        self._gate = gate
        self._allow_changes = allow_changes
        self._streams = 0
        self.is_ending = asyncio.Event()
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=select_autoescape(default=True),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            **{each.__name__: _known(each) for each in (figures.number, figures.size, figures.moment, figures.money,
                                                        figures.percent, figures.moment_iso)},
            "part": lambda text: quote(str(text), safe=""), "pretty": _pretty, "words": _words,
        }  # fmt: skip
        self._templates.globals |= {
            "version": __version__,
            "age": figures.age,
            "query": _query,
        }

    def application(self) -> ASGIApp:
        routes = [Route(page.path, self._page(page.template, page.context), methods=["GET"]) for page in PAGES]
        routes += [
            Route("/api", self._api_page, methods=["GET"]),
            Route("/api/openapi.json", self._openapi, methods=["GET"]),
            Route("/api/{name}", self._call, methods=["GET", "POST"]),
            Route("/do/{name}", self._do, methods=["POST"]),
            Route("/sql", self._spark, methods=["POST"]),
            Route("/events/tail", self._tail, methods=["GET"]),
            Route("/events/page", self._events, methods=["GET"]),
            Route("/login", self._log_in_page, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]
        return Starlette(
            routes=[*routes, Mount("/static", StaticFiles(directory=HERE / "static"))],
            middleware=[Middleware(_Guard, gate=self._gate)],
            exception_handlers={404: self._failed, 405: self._failed, 500: self._broken},
        )

    # Pages

    def _render(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        sources = self._gate.sources
        known = self._gate.cookie_of(request)
        cookie, session = known or self._gate.new_cookie(), self._gate.session(known)
        is_here = {"/tier": sources.has_tier, "/settings": sources.has_wire}
        html = self._templates.get_template(template).render(
            path=request.url.path,
            navigation=[each for each in NAVIGATION if is_here.get(each[0], True)],
            token=self._gate.token_of(cookie),
            token_field=TOKEN_FIELD,
            account=session.credentials.access_key if session is not None else None,
            allow_changes=self._allow_changes,
            request_query=request.url.query,
            **context,
        )
        response = HTMLResponse(html, status)
        if known is None:
            response.set_cookie(COOKIE, cookie, max_age=int(SESSION_S), httponly=True, samesite="strict", path="/")
        return response

    def _page(self, template: str, context: Callable[[Ask], dict[str, Any]]) -> Callable[[Request], Response]:
        def page(request: Request) -> Response:
            try:
                visit = self._visit(request)
                values = {**request.query_params, **request.path_params}
                if _is_foreign(request):  # A link of another site shows the page, and starts no work.
                    values = {name: value for name, value in values.items() if name not in NOT_BY_LINK}
                found = context(Ask(visit, values))
                return self._render(request, template, **found, live=True, problems_of_servers=visit.problems())
            except (Refused, TierMQError) as error:
                return self._problem(request, error)

        return page

    def _visit(self, request: Request) -> Visit:
        return self._gate.visit(request, self._gate.session(self._gate.cookie_of(request)))

    def _problem(self, request: Request, error: Exception) -> Response:
        status, text = _status_of(error)
        if status == 401:
            then = f"{request.url.path}?{request.url.query}".rstrip("?")
            return RedirectResponse(f"/login?{urlencode({'then': then})}", 303)
        return self._render(request, "error.html", status, problem=text)

    def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"expected a page of the console, found {request.url.path[:200]}"
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": text}, error.status_code)
        return self._render(request, "error.html", error.status_code, problem=text)

    def _broken(self, request: Request, error: Exception) -> Response:
        _log.error("%s failed", request.url.path, exc_info=error)
        text = f"{request.url.path[:200]} failed: {type(error).__name__}; the log of the console has the particulars"
        return JSONResponse({"error": text}, 500)

    def _log_in_page(self, request: Request) -> Response:
        return self._render(request, "login.html", then=_local(request.query_params.get("then", "/")), problem=None)

    async def _log_in(self, request: Request) -> Response:
        form = await _form(request)
        return await run_in_threadpool(self._logged_in, request, form)

    def _logged_in(self, request: Request, form: dict[str, str]) -> Response:
        cookie = self._gate.cookie_of(request)
        then = _local(form.get("then", "/"))
        try:
            self._gate.check_token(cookie, form.get(TOKEN_FIELD, ""))
            credentials, is_administrator = self._gate.log_in(
                request, form.get("accessKey", ""), form.get("secretKey", "")
            )
        except (Refused, TierMQError) as error:
            status, text = _status_of(error)
            return self._render(request, "login.html", status, then=then, problem=text)
        # A cookie from before the log-in must not be one after it.
        self._gate.close_session(cookie)
        fresh = self._gate.new_cookie()
        self._gate.open_session(fresh, credentials, is_administrator=is_administrator)
        response = RedirectResponse(then, 303)
        response.set_cookie(COOKIE, fresh, max_age=int(SESSION_S), httponly=True, samesite="strict", path="/")
        return response

    async def _log_out(self, request: Request) -> Response:
        cookie = self._gate.cookie_of(request)
        try:
            self._gate.check_token(cookie, (await _form(request)).get(TOKEN_FIELD, ""))
        except Refused as error:
            return self._problem(request, error)
        self._gate.close_session(cookie)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    # Operations

    async def _do(self, request: Request) -> Response:
        try:
            form = await _form(request)
        except Refused as error:
            return self._problem(request, error)
        return await run_in_threadpool(self._done, request, form)

    def _done(self, request: Request, form: dict[str, str]) -> Response:
        name = request.path_params["name"]
        back = _local(form.pop("back", "/"))
        try:
            self._gate.check_token(self._gate.cookie_of(request), form.pop(TOKEN_FIELD, ""))
            result = run(name, self._visit(request), form)
        except (Refused, TierMQError) as error:
            return self._problem(request, error)
        return self._render(request, "done.html", name=name, result=result, back=back)

    async def _spark(self, request: Request) -> Response:
        """A query that a form sends to Spark; shown as those that run here."""
        try:
            form = await _form(request)
        except Refused as error:
            return self._problem(request, error)
        return await run_in_threadpool(self._ran_on_spark, request, form)

    def _ran_on_spark(self, request: Request, form: dict[str, str]) -> Response:
        try:
            self._gate.check_token(self._gate.cookie_of(request), form.get(TOKEN_FIELD, ""))
            context = spark_result(Ask(self._visit(request), form))
        except (Refused, TierMQError) as error:
            return self._problem(request, error)
        return self._render(request, "sql.html", **context)

    async def _call(self, request: Request) -> Response:
        try:
            values: dict[str, Any] = dict(request.query_params)
            if request.method == "POST":
                values = await _json(request)
        except Refused as error:
            return JSONResponse({"error": str(error)}, error.status)
        return await run_in_threadpool(self._called, request, values)

    def _called(self, request: Request, values: dict[str, Any]) -> Response:
        name = request.path_params["name"]
        try:
            known = operations().get(name)
            if known is not None and known.posts and request.method != "POST":
                why = "changes something" if known.changes else "starts work"
                raise Refused(405, f"{name} {why}: expected POST with a JSON object")
            if known is not None and not known.posts and request.method != "GET":
                raise Refused(405, f"{name} only reads: expected GET")
            if request.method == "POST" and "authorization" not in request.headers:
                self._gate.check_token(self._gate.cookie_of(request), request.headers.get(TOKEN_HEADER, ""))
            return JSONResponse(run(name, self._visit(request), values))
        except (Refused, TierMQError) as error:
            status, text = _status_of(error)
            return JSONResponse({"error": text}, status)

    def _api_page(self, request: Request) -> Response:
        try:
            self._visit(request)
        except (Refused, TierMQError) as error:
            return self._problem(request, error)
        return self._render(
            request, "api.html", operations=sorted(operations().values(), key=lambda each: each.name), Kind=Kind
        )

    def _openapi(self, _request: Request) -> Response:
        return JSONResponse(openapi(operations()))

    # Events

    async def _events(self, request: Request) -> Response:
        """A page's live part, rendered again every few seconds, sent when it changed."""
        path = request.query_params.get("path", "/")
        page = next((each for each in PAGES if each.path == path and each.fragment), None)
        if page is None:
            return JSONResponse({"error": "expected a page with live figures"}, 404)
        rest = {name: value for name, value in request.query_params.items() if name != "path"}
        try:
            await run_in_threadpool(self._visit, request)  # Streams are few: none exists before a log-in.
        except Refused as error:
            return JSONResponse({"error": str(error)}, error.status)

        def rendered() -> str:
            visit = self._visit(request)
            return self._templates.get_template(page.fragment).render(**page.context(Ask(visit, rest)), live=True)

        async def events() -> AsyncIterator[str]:
            before = ""
            while not self.is_ending.is_set():
                try:
                    html = await run_in_threadpool(rendered)
                except (Refused, TierMQError) as error:
                    yield _event("problem", str(error))
                else:
                    if html != before:
                        yield _event("part", html)
                        before = html
                if not before:
                    yield ": still here\n\n"
                await self._rest(EVENT_S)

        return self._stream(events())

    async def _tail(self, request: Request) -> Response:
        """New messages of a topic, as they come; a note where some were not read."""
        try:
            await run_in_threadpool(self._visit, request)
        except Refused as error:
            return JSONResponse({"error": str(error)}, error.status)

        asked = request.query_params
        following = Following(asked.get("topic", ""), asked.get("tag") or None, asked.get("text") or None)

        def rows() -> list[dict[str, Any]]:
            return following.step(self._visit(request))  # It ends with the log-in.

        row = self._templates.get_template("_message_row.html")
        note = self._templates.get_template("_message_note.html")

        async def events() -> AsyncIterator[str]:
            yield ": begun\n\n"
            while not self.is_ending.is_set():
                try:
                    found = await run_in_threadpool(rows)
                except (Refused, TierMQError) as error:
                    yield _event("problem", str(error))
                    return
                for text in following.notes:
                    yield _event("row", note.render(text=text))
                for each in found:
                    yield _event("row", row.render(message=each, topic=following.topic))
                if not following.is_behind:
                    await self._rest(EVENT_S / 2)

        return self._stream(events())

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.is_ending.wait()
        except TimeoutError:
            return

    def _stream(self, events: AsyncIterator[str]) -> Response:
        if self._streams >= STREAMS_MAX:
            return JSONResponse({"error": f"expected at most {STREAMS_MAX} live pages, found more"}, 503)

        async def counted() -> AsyncIterator[str]:
            if self._streams >= STREAMS_MAX:  # Others began since.
                yield _event("problem", f"expected at most {STREAMS_MAX} live pages, found more")
                return
            self._streams += 1
            try:
                async for each in events:
                    yield each
            finally:
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream")


class _Guard:
    """Checks the Host header and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = [(name, value) for name, value in message["headers"] if name.decode().lower() not in HEADERS]
                message["headers"] = found + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        try:
            request = Request(scope)
            self._gate.check_host(request)
            is_link = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
            if _is_foreign(request) and not (
                is_link and request.method == "GET" and not request.url.path.startswith(PAGES_ONLY)
            ):
                raise Refused(403, "expected a request of this console's pages, found one of another site's")
        except Refused as error:
            await JSONResponse({"error": str(error)}, error.status)(scope, receive, with_headers)
            return
        if request.url.path not in RUNS_QUERIES:
            await self._app(scope, receive, with_headers)
            return
        left = threading.Event()
        client_has_left.set(left)
        watching: list[asyncio.Task[None]] = []

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        async def body() -> Message:
            message = await receive()
            if not message.get("more_body"):
                watching.append(asyncio.create_task(watch()))
            return message

        if request.method != "POST":  # No handler of these reads a body.
            watching.append(asyncio.create_task(watch()))
        try:
            await self._app(scope, body, with_headers)
        finally:
            for each in watching:
                each.cancel()


def _is_foreign(request: Request) -> bool:
    """Whether a browser sends it for a page of another site, or of another port here."""
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _status_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, TooManyQueries):
        return 429, str(error)
    if isinstance(error, ChangeRefused) or (
        isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION
    ):
        return 403, str(error)
    if isinstance(error, BadRequest | BadHistory | BadConfig | RequestRefused):
        return 400, str(error)
    if isinstance(error, RemotingError | TierError):
        return 502, str(error)
    _log.warning("an operation failed: %s", error)
    return 500, str(error)


async def _body(request: Request) -> bytes:
    parts, count = [], 0
    async for part in request.stream():
        count += len(part)
        if count > FORM_BYTES_MAX:
            raise Refused(413, f"expected a body of at most {FORM_BYTES_MAX:,} bytes, found more")
        parts.append(part)
    return b"".join(parts)


async def _form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, f"expected a form, found {kind[:60]!r}")
    try:
        return dict(parse_qsl((await _body(request)).decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise Refused(400, f"expected a form in UTF-8, found: {error}") from error


async def _json(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise Refused(415, f"expected application/json, found {kind[:60]!r}")
    try:
        found = json.loads(await _body(request) or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"expected JSON, found: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(each, str | int | float | bool | None) for each in found.values()
    ):
        raise Refused(400, "expected a JSON object of texts, numbers and booleans, found something else")
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}


def _local(path: str) -> str:
    """A path of this console; never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"


def _query(before: str, **changes: object) -> str:
    """The query of this page with some parameters changed, for links to other pages of a list."""
    values = dict(parse_qsl(before))
    values |= {name: str(value) for name, value in changes.items()}
    return urlencode(values)


def _known(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    """A filter for what an operation may leave out: it counts as not known."""
    return lambda value: shown(None if isinstance(value, Undefined) else value)


def _words(text: str) -> Markup:
    """A sentence for people; what is between backticks is a command or a name."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _pretty(text: str) -> str:
    """JSON with indents; any other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
