"""Drivers over obstore's stores: a bucket of S3, GCS or Azure, a directory, memory. `tier_url` imports this when a URL
names one, since obstore is an extra.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from tiermq.errors import BadTierUrl
from tiermq.tier.driver.object_requests import ObjectRequests, PastTheEnd, cleaned, our_error
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.posix import LOCK_NAME, locked

if TYPE_CHECKING:
    from tiermq.tier.driver.object_requests import Store

CONNECT_TIMEOUT_S = 5
_LOOPBACK = re.compile(r"^http://(127\.|localhost\b|\[::1\])")
_S3_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "default_region",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_SKIP_SIGNATURE": "skip_signature",
}
_AZURE_SETTINGS = {
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
}
_memory_stores: dict[str, MemoryStore] = {}
_memory_stores_lock = threading.Lock()


def objects_in_bucket(url: str, environment: Mapping[str, str], request_timeout_s: float) -> ObjectStoreDriver:
    """The driver of scheme://bucket or scheme://bucket/prefix. Sends no request. Raises BadTierUrl, TierCredentials."""
    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    makers: dict[str, Callable[[str, str | None, Mapping[str, str], float], Store]]
    makers = {"s3": _s3_store, "gs": _gcs_store, "az": _azure_store}
    try:
        store = makers[scheme](bucket, prefix or None, environment, request_timeout_s)
    except BaseError as error:
        ours = our_error(error, "open the tier", url, "")
        raise (BadTierUrl(f"{url}: {cleaned(str(error))}") if isinstance(ours, PastTheEnd) else ours) from None
    return ObjectStoreDriver(ObjectRequests(store, url), url)


def objects_in_directory(root: Path, url: str) -> ObjectStoreDriver:
    """A local directory has no compare-and-set, so a lock file replaces it."""
    root.mkdir(parents=True, exist_ok=True)
    exclusive: Callable[[], AbstractContextManager[object]] = partial(
        locked, str(root / LOCK_NAME), os.O_RDWR | os.O_CREAT
    )
    return ObjectStoreDriver(ObjectRequests(LocalStore(root), url, exclusive=exclusive), url)


def objects_in_memory(name: str, url: str) -> ObjectStoreDriver:
    """One store for each name within the process; one of its own without a name."""
    with _memory_stores_lock:
        store = _memory_stores.setdefault(name, MemoryStore()) if name else MemoryStore()
    return ObjectStoreDriver(ObjectRequests(store, url), url)


def _s3_store(bucket: str, prefix: str | None, environment: Mapping[str, str], timeout_s: float) -> S3Store:
    endpoint = environment.get("AWS_ENDPOINT_URL") or environment.get("AWS_ENDPOINT")
    allow_http = _allow_http("AWS", endpoint, environment)
    config: dict[str, Any] = _settings(_S3_SETTINGS, environment)
    if endpoint:
        config["endpoint"] = endpoint
    return S3Store(bucket, prefix=prefix, config=config, **_client(allow_http, timeout_s))  # type: ignore[arg-type]


def _gcs_store(bucket: str, prefix: str | None, _environment: Mapping[str, str], timeout_s: float) -> GCSStore:
    return GCSStore(bucket, prefix=prefix, **_client(False, timeout_s))


def _azure_store(container: str, prefix: str | None, environment: Mapping[str, str], timeout_s: float) -> AzureStore:
    endpoint = environment.get("AZURE_STORAGE_ENDPOINT")
    allow_http = _allow_http("AZURE", endpoint, environment)
    config: dict[str, Any] = _settings(_AZURE_SETTINGS, environment)
    return AzureStore(container, prefix=prefix, config=config, **_client(allow_http, timeout_s))  # type: ignore[arg-type]


def _settings(names: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    return {setting: environment[name] for name, setting in names.items() if environment.get(name)}


def _allow_http(cloud: str, endpoint: str | None, environment: Mapping[str, str]) -> bool:
    """Plain HTTP is allowed to this machine only, unless the environment allows it."""
    if not endpoint or not endpoint.startswith("http://") or _LOOPBACK.match(endpoint):
        return bool(endpoint)
    if environment.get(f"{cloud}_ALLOW_HTTP", "").lower() in ("1", "true"):
        return True
    raise BadTierUrl(
        f"expected an https:// endpoint, found {cleaned(endpoint)}. Messages would be sent unencrypted; "
        f"set {cloud}_ALLOW_HTTP=true to allow that."
    )


def _client(allow_http: bool, timeout_s: float) -> dict[str, Any]:
    """No retries in the client: our wrappers count, time and retry each request."""
    return {
        "client_options": {
            "allow_http": allow_http,
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, timeout_s)),
        },
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
    }
