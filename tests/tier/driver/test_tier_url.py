"""Tier URLs: which driver they open, and what is said about those that open none."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.asked import Asked
from tier.driver.conformance import fresh_segment
from tiermq.errors import BadTierUrl, TierCredentials, TierError
from tiermq.metrics import Registry
from tiermq.tier.driver.contract import ANY, Expected, ForwardingDriver
from tiermq.tier.driver.memory import MemoryDriver, forget
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.provider_metrics import ProviderMetrics
from tiermq.tier.driver.retry import RetryingDriver
from tiermq.tier.driver.tier_url import bare_driver, open_driver, require_conditional_writes

SECRET = "a-secret-not-to-be-shown"
AWS = {
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "r",
}
AZURE = {
    "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
    "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
    "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1/devstoreaccount1",
}


def test_each_scheme_opens_its_driver(tmp_path: Path) -> None:
    for url, environment, kind in [
        (tmp_path.as_uri(), {}, PosixDriver),
        (f"file://localhost{tmp_path}", {}, PosixDriver),
        (tmp_path.as_uri() + "?driver=object", {}, ObjectStoreDriver),
        ("memory://", {}, MemoryDriver),
        ("memory://?driver=object", {}, ObjectStoreDriver),
        ("s3://bucket/some/prefix", AWS, ObjectStoreDriver),
        ("az://container/prefix", AZURE, ObjectStoreDriver),
    ]:
        driver = bare_driver(url, environment)
        assert type(driver) is kind, url
        driver.close()


def test_without_the_client_of_object_stores_a_bucket_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "obstore" else object())
    with pytest.raises(BadTierUrl, match=r"s3://bucket/p: expected the package obstore.*pip install 'tiermq\[s3\]'"):
        bare_driver("s3://bucket/p", AWS)
    bare_driver(tmp_path.as_uri(), {}).close()


def test_the_stack_is_one_wrapper_around_the_back_end() -> None:
    driver = open_driver("memory://", metrics=ProviderMetrics(Registry()))
    assert isinstance(driver, RetryingDriver)
    assert isinstance(driver.inner, MemoryDriver)
    assert isinstance(open_driver("memory://", retry=None), MemoryDriver)
    assert driver.url == "memory://"
    driver.close()


def test_a_memory_of_one_name_is_one_memory() -> None:
    key = fresh_segment()
    for options in ("", "?driver=object"):
        open_driver(f"memory://shared{options}").write(key, 0, [b"x"])
        assert open_driver(f"memory://shared{options}").size(key) == 1
        assert open_driver(f"memory://{options}").size(key) == 0
    forget("shared")


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    root = tmp_path / "a name with spaces, ümlauts & %41"
    driver = open_driver(root.as_uri())
    driver.write(fresh_segment(), 0, [b"x"])
    assert root.is_dir()
    assert driver.url == root.as_uri()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/dir", "begins with file://, s3://, gs://, az://, memory://; found ftp://"),
        ("/a/directory", "A directory is written file:///a/directory"),
        ("relative/dir", "begins with file://"),
        ("", "begins with file://"),
        ("file://relative/dir", "three slashes"),
        ("file:relative", "three slashes"),
        ("s3:///prefix", "no bucket"),
        ("s3://bucket/p?region=x", "found region"),
        ("file:///d?driver=other", "found driver"),
        ("s3://bucket/p#x", "without '#'"),
        ("s3://[bad", "found an invalid URL"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_a_hint(url: str, said: str) -> None:
    with pytest.raises(BadTierUrl, match=said.replace("?", "\\?")):
        open_driver(url, environment=AWS)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(BadTierUrl, match="come from the environment") as caught:
        open_driver(f"s3://key:{SECRET}@bucket/prefix", environment=AWS)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment", "named"),
    [
        ("s3://bucket", {}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket", {"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/f"}, "AWS_ROLE_ARN"),
        ("s3://bucket", {"AWS_SKIP_SIGNATURE": "false"}, "AWS_SKIP_SIGNATURE"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "here"}, "AWS_ACCESS_KEY_ID"),
        ("gs://bucket", {}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container", {}, "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_without_credentials_a_tier_is_refused_and_nothing_is_asked_for_them(
    asked: Asked, url: str, environment: dict[str, str], named: str
) -> None:
    environment = {name: asked.address if value == "here" else value for name, value in environment.items()}
    with pytest.raises(TierCredentials, match="found none. Set ") as refused:
        open_driver(url, environment=environment)
    assert named in str(refused.value)
    assert f"{url}?identity=instance" in str(refused.value)
    assert asked.requests == []


def test_the_machine_s_identity_is_asked_for_only_where_the_url_reports_so(asked: Asked) -> None:
    environment = {"AWS_REGION": "r", "AWS_ENDPOINT_URL": asked.address}
    driver = open_driver("s3://bucket/prefix?identity=instance", environment=environment, retry=None)
    with pytest.raises(TierError):
        driver.get_object("a.tiermq.json")
    driver.close()
    assert driver.url == "s3://bucket/prefix"
    assert asked.requests
    assert all("/latest/" in request for request in asked.requests)


def test_messages_do_not_travel_in_the_clear_by_accident() -> None:
    far = {**AWS, "AWS_ENDPOINT_URL": "http://storage.example:9000"}
    with pytest.raises(BadTierUrl, match="AWS_ALLOW_HTTP=true"):
        open_driver("s3://bucket", environment=far)
    open_driver("s3://bucket", environment={**far, "AWS_ALLOW_HTTP": "true"}).close()


def test_a_server_that_is_not_there_is_unavailable_and_shows_no_secret() -> None:
    driver = open_driver("s3://bucket/prefix", environment=AWS, retry=None)
    with pytest.raises(TierError, match="s3://bucket/prefix.*could not") as caught:
        driver.size(fresh_segment())
    assert type(caught.value).__name__ == "TierUnavailable"
    assert SECRET not in str(caught.value)
    driver.close()


def test_processes_that_test_conditional_writes_at_once_do_not_disturb_each_other() -> None:
    """Also with one process number, as in containers."""
    name = "a/lease.tiermq.json"

    class Shared(ForwardingDriver):
        others = 5

        def put_object(self, name_of: str, data: bytes, *, expected: Expected = ANY) -> str:
            version = self.inner.put_object(name_of, data, expected=expected)
            self.others -= 1
            if self.others >= 0:
                require_conditional_writes(self.inner, name)
            return version

    driver = bare_driver("memory://conditional", {})
    require_conditional_writes(Shared(driver), name)
    assert driver.list_objects() == []
    forget("conditional")
