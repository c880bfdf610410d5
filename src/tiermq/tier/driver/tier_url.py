"""Tier URLs: from a string to an open driver, with its wrappers.

    file:///dir                   PosixDriver: RocketMQ's own layout, appended in place
    s3://bucket/prefix            ObjectStoreDriver   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
                                                      AWS_ENDPOINT_URL (any S3-compatible server), AWS_ALLOW_HTTP, …
    gs://bucket/prefix            ObjectStoreDriver   GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, …
    az://container/prefix         ObjectStoreDriver   AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, …
    memory://name                 MemoryDriver        shared within the process
    file:///dir?driver=object     the object driver over a directory: for tests, because nothing is fsynced
    memory://name?driver=object   the object driver over memory: for tests
    s3://bucket/prefix?identity=instance              credentials of the machine; also for gs:// and az://

Credentials come from the environment, never from the URL: URLs end up in logs, process lists and manifests. Without
credentials the tier is refused before a request is sent; only `identity=instance` uses the cloud's metadata address.
"""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tiermq.clock import Clock
from tiermq.errors import BadTierUrl, ManifestConflict, TierCredentials, install_hint
from tiermq.tier.driver.contract import ReadOnlyDriver, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.provider_metrics import ProviderMetrics
from tiermq.tier.driver.retry import RetryingDriver, RetryPolicy
from tiermq.tier.names import OBJECT_SUFFIX

SCHEMES = ("file", "s3", "gs", "az", "memory")
REQUEST_TIMEOUT_S = 60  # For a whole request: no write should be much larger than 100 MiB.
CREDENTIALS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        ("AWS_SKIP_SIGNATURE",),
    ),
    "gs": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        ("GOOGLE_SERVICE_ACCOUNT",),
        ("GOOGLE_SERVICE_ACCOUNT_PATH",),
        ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        ("GOOGLE_SKIP_SIGNATURE",),
    ),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCESS_KEY"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_KEY"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_TOKEN"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_TOKEN"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_FEDERATED_TOKEN_FILE"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_SKIP_SIGNATURE"),
        ("AZURE_STORAGE_USE_EMULATOR",),
    ),
}
"""Variables that are credentials; one line suffices. Without any, the client of each cloud would query the metadata
address of the machine, and that of GCS read a file in the home directory first."""
_SWITCHES = frozenset(
    ("AWS_SKIP_SIGNATURE", "GOOGLE_SKIP_SIGNATURE", "AZURE_SKIP_SIGNATURE", "AZURE_STORAGE_USE_EMULATOR")
)


def open_driver(
    url: str,
    *,
    environment: Mapping[str, str] | None = None,
    metrics: ProviderMetrics | None = None,
    retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - it is a frozen value
    clock: Clock | None = None,
    chance: Callable[[], float] = random.random,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    reads: bool = False,
) -> TierDriver:
    """The driver of a URL, retrying, and metered when there are metrics; bare when `retry` is None. Sends no request.
    With `reads` it refuses to write.

    `environment` replaces the environment of the process. Raises BadTierUrl, TierCredentials.
    """
    driver = bare_driver(url, os.environ if environment is None else environment, request_timeout_s)
    if reads:
        driver = ReadOnlyDriver(driver)
    if retry is None:
        return driver
    return RetryingDriver(driver, retry, metrics=metrics, clock=clock, chance=chance)


def check_tier(url: str, name: str, *, writes: bool, environment: Mapping[str, str] | None = None) -> None:
    """Test the back end: read the small object `name`, and if `writes`, write and delete one beside it.

    At most three requests, no retries. Raises TierUnavailable when it does not respond, BadTierUrl and TierCredentials
    when it refuses: no such bucket, a bad signature, no permission, a directory that cannot be created.
    """
    driver = bare_driver(url, os.environ if environment is None else environment)
    try:
        _ask(driver, name, writes)
    finally:
        driver.close()


def _ask(driver: TierDriver, name: str, writes: bool) -> None:
    driver.get_object(name)
    if writes:
        probe = _probe_of(name)
        driver.put_object(probe, b"{}")
        driver.delete_object(probe)


def _probe_of(name: str) -> str:
    """Of this call alone: in containers every process may have the same number."""
    return f"{name.removesuffix(OBJECT_SUFFIX)}.check-{secrets.token_hex(4)}{OBJECT_SUFFIX}"


def require_conditional_writes(driver: TierDriver, name: str) -> None:
    """Test by an object beside `name` that a write is refused if it expects another version than there is. Servers that
    take S3's requests and pass over If-Match let every writer win: two masters, and lost messages.

    At most six requests. Raises BadTierUrl for a store that compares nothing, and what its requests raise.
    """
    probe = _probe_of(name)
    first = driver.put_object(probe, b"{}")
    driver.put_object(probe, b'{"put":2}', expected=first)
    for number, expected in ((3, first), (4, None)):
        with suppress(ManifestConflict):
            driver.put_object(probe, b'{"put":%d}' % number, expected=expected)
            driver.delete_object(probe)
            raise BadTierUrl(
                f"{driver.url}: expected a store that replaces an object only while it has the expected version "
                "(conditional writes: If-Match, If-None-Match), found one that replaced it nevertheless: two masters "
                "would not exclude each other. Use a store that has conditional writes"
            )
    driver.delete_object(probe)


def bare_driver(url: str, environment: Mapping[str, str], request_timeout_s: float = REQUEST_TIMEOUT_S) -> TierDriver:
    """The back end alone, without wrappers."""
    parts = _split(url)
    setting = _setting(parts)
    over_objects = setting == _OVER_OBJECTS
    if parts.scheme == "memory" and not over_objects:
        return MemoryDriver(parts.netloc)
    root = _directory(parts, url) if parts.scheme == "file" else None
    if root is not None and not over_objects:
        return PosixDriver(root)
    if parts.scheme in CREDENTIALS and not parts.netloc:
        raise BadTierUrl(f"expected {parts.scheme}://<bucket>/<prefix>, found no bucket in {url!r}")
    prefix = unquote(parts.path).strip("/")
    shown = f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    if parts.scheme in CREDENTIALS and setting != _INSTANCE:
        _require_credentials(parts.scheme, shown, environment)
    _require_client(shown)
    from tiermq.tier.driver import object_stores

    if root is not None:
        return object_stores.objects_in_directory(root, url)
    if parts.scheme == "memory":
        return object_stores.objects_in_memory(parts.netloc, url)
    return object_stores.objects_in_bucket(shown, environment, request_timeout_s)


def _require_client(shown: str) -> None:
    """Raises BadTierUrl without the client of object stores, which is an extra: stores, and tiers in directories, do
    without its 16 MB."""
    if importlib.util.find_spec("obstore") is None:
        raise BadTierUrl(f"{shown}: expected the package obstore, found none: {install_hint('s3')}")


def _split(url: str) -> SplitResult:
    """The parts of the URL. No error quotes the URL before it is known to contain no password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadTierUrl("expected a tier URL such as s3://bucket/prefix, found an invalid URL") from None
    if parts.username is not None or parts.password is not None:
        raise BadTierUrl(
            f"expected {parts.scheme}://<bucket>/<prefix> without a user or password. "
            "Credentials come from the environment: set AWS_*, GOOGLE_* or AZURE_* variables."
        )
    if parts.fragment:
        raise BadTierUrl(f"expected a tier URL without '#', found one in {parts.scheme}://{parts.netloc}")
    if parts.scheme not in SCHEMES:
        hint = f" A directory is written file://{url}." if url.startswith("/") else ""
        raise BadTierUrl(
            f"expected a tier URL that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}; "
            f"found {parts.scheme + '://…' if parts.scheme else repr(url)}.{hint}"
        )
    return parts


_OVER_OBJECTS = ("driver", "object")
_INSTANCE = ("identity", "instance")


def _setting(parts: SplitResult) -> tuple[str, str] | None:
    """The setting that a URL may have. Raises BadTierUrl for any other."""
    settings = parse_qsl(parts.query, keep_blank_values=True)
    allowed = _OVER_OBJECTS if parts.scheme in ("file", "memory") else _INSTANCE
    if settings not in ([], [allowed]):
        names = ", ".join(name for name, _ in settings)
        raise BadTierUrl(
            f"expected no settings in a {parts.scheme}:// URL but '?{allowed[0]}={allowed[1]}', found {names}"
        )
    return allowed if settings else None


def _require_credentials(scheme: str, shown: str, environment: Mapping[str, str]) -> None:
    """Raises TierCredentials, which lists the variables, before any request is sent."""
    if ways := missing_credentials(CREDENTIALS[scheme], environment):
        raise TierCredentials(
            f"{shown}: expected credentials in the environment, found none. Set {ways}; or use the identity "
            f"of the machine with {shown}?identity=instance"
        )


def missing_credentials(lines: Sequence[Sequence[str]], environment: Mapping[str, str]) -> str:
    """The variables to set, in words; empty when those of one line are set."""

    def is_set(name: str) -> bool:
        value = environment.get(name, "").strip()
        return value.lower() in ("1", "true") if name in _SWITCHES else bool(value)

    return "" if any(all(map(is_set, names)) for names in lines) else ", or ".join(map(" and ".join, lines))


def directory_of(url: str) -> Path | None:
    """The directory of a tier that is in one; None for an object store. Raises BadTierUrl."""
    parts = _split(url)
    return _directory(parts, url) if parts.scheme == "file" else None


def _directory(parts: SplitResult, url: str) -> Path:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadTierUrl(f"expected file:///an/absolute/directory (three slashes), found {url!r}")
    return Path(unquote(parts.path))
