"""What an object store's client says becomes one of our errors, with the reason and without the secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from tiermq.errors import BadTierName, BadTierUrl, TierCredentials, TierError, TierUnavailable
from tiermq.tier.driver.object_requests import SHOWN_CHARACTERS_MAX, PastTheEnd, cleaned, our_error, translated
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import QueueKey, SegmentType

NO_BUCKET = "404 Not Found: <Error><Code>NoSuchBucket</Code><Message>The bucket is not there</Message></Error>"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GenericError("connection refused"), TierUnavailable),
        (GenericError("500 Internal Server Error"), TierUnavailable),
        (OSError("cut"), TierUnavailable),
        (PermissionDeniedError("no"), TierCredentials),
        (UnauthenticatedError("who"), TierCredentials),
        (GenericError("Error performing list request: 403 Forbidden: "), TierCredentials),
        (GenericError("could not reach 169.254.169.254"), TierCredentials),
        (GenericError(NO_BUCKET), BadTierUrl),
        (InvalidPathError("a//b"), BadTierName),
        (NotSupportedError("no"), TierError),
        (NotImplementedError("no"), TierError),
        (GenericError("416 Range Not Satisfiable"), PastTheEnd),
        (GenericError("416 Requested Range Not Satisfiable"), PastTheEnd),
        (GenericError("Requested range was invalid"), PastTheEnd),
        (GenericError("Error performing GET http://h/b:416/k in 7.416 s - 403 Forbidden: "), TierCredentials),
        (GenericError("Error performing GET http://h/b in 9 s - 500: Debug source: [416, 17]"), TierUnavailable),
    ],
)
def test_each_failure_has_its_kind(error: Exception, expected: type[Exception]) -> None:
    assert type(our_error(error, "read", "s3://b", "path")) is expected


def test_answers_pass_and_a_missing_bucket_is_not_a_missing_object() -> None:
    with pytest.raises(AlreadyExistsError), translated("create", "s3://b", "p"):
        raise AlreadyExistsError("there")
    with pytest.raises(FileNotFoundError), translated("read", "s3://b", "p"):
        raise FileNotFoundError("404 Not Found: <Code>NoSuchKey</Code>")
    with pytest.raises(BadTierUrl, match="Create it"), translated("read", "s3://b", "p"):
        raise FileNotFoundError(NO_BUCKET)


def test_the_reason_is_kept_and_the_noise_is_not() -> None:
    text = (
        'Error performing GET http://h/b/k?X-Amz-Signature=abc in 3ms - 403 Forbidden: <?xml version="1.0"?>\n'
        "<Error><Code>SignatureDoesNotMatch</Code><Message>check your key</Message>"
        "<StringToSign>x</StringToSign></Error>\n"
        "\nDebug source: RetryError { secret: 1 }"
    )
    assert cleaned(text) == "SignatureDoesNotMatch: check your key"
    assert cleaned("GET http://h/b/k?X-Amz-Signature=abc failed.  ") == "GET http://h/b/k failed"
    assert len(cleaned("x" * 10_000)) <= SHOWN_CHARACTERS_MAX + 1


def test_no_secret_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "aws-secret-value",
        "AWS_SESSION_TOKEN": "aws-token-value",
        "AZURE_STORAGE_ACCOUNT_KEY": "azure-key-value",
        "AZURE_STORAGE_SAS_KEY": "azure-sas-value",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "google-key-value",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    text = "broke: " + " ".join(secrets.values()) + " at http://user:password@host/x"
    with pytest.raises(TierUnavailable) as caught, translated("read", "s3://b", "p"):
        raise GenericError(text)
    shown = str(caught.value)
    assert not [value for value in [*secrets.values(), "password"] if value in shown]
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_path_that_no_object_can_have_is_a_bad_name(tmp_path: Path) -> None:
    driver = open_driver(f"file://{tmp_path}/tier?driver=object", retry=None)
    assert list(driver.list_objects("../../outside")) == []
    with pytest.raises(BadTierName, match="a name that an object may have"):
        driver.write(QueueKey("c", "b", "a\nb", 0).segment(SegmentType.COMMIT_LOG, 0), 0, [b"x"])
    driver.close()
