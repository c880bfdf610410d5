"""What an object store's client raises, said in the words of our own error tree, and without secrets.

The client's own text may hold signed addresses and whole answers of the server, so it is never passed on as it is, nor
chained: a traceback would print it. Query strings and the values of secret environment variables are blotted out; of
an XML answer only the code and the message are kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from tiermq.errors import BadTierName, BadTierUrl, TierCredentials, TierError, TierUnavailable

SHOWN_CHARACTERS_MAX = 300
_QUERY = re.compile(r"\?[^\s\"'<>)]*")
_USER_INFO = re.compile(r"//[^/\s@]+@")
_XML = re.compile(r"<\?xml.*", re.DOTALL)
_CODE = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_SECRET_NAME = re.compile(r"^(AWS|GOOGLE|AZURE)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)", re.IGNORECASE)
_PUBLIC_NAME = re.compile(r"_(ACCESS_KEY_ID|URI|URL|FILE|PATH)$", re.IGNORECASE)
_REFUSED = re.compile(r"\b40[13] (?:Forbidden|Unauthorized)|SignatureDoesNotMatch|InvalidAccessKeyId|AccessDenied")
_NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|instance ?metadata|credential", re.IGNORECASE)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_PAST_END = re.compile(r"\b416\b|InvalidRange|StartTooLarge|range was invalid", re.IGNORECASE)
_SHORT_SECRET = 4  # Blotting out "1" or "true" would blot out everything.


class PastTheEnd(Exception):
    """A range began beyond the end of its object. Never leaves the drivers' package."""


@contextmanager
def translated(action: str, url: str, path: str) -> Iterator[None]:
    """Answers pass as they are: the object is missing, is there already, is another version. Failures become ours."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as error:
        if _NO_BUCKET.search(str(error)):
            raise no_bucket(url) from None
        raise
    except (BaseError, OSError, NotImplementedError) as error:
        raise our_error(error, action, url, path) from None
    except TierError:
        raise
    except ValueError as error:  # What the client says of a path before it asks anybody.
        raise BadTierName(f"{url}: expected a name that an object may have: {cleaned(str(error))}") from None


def our_error(error: Exception, action: str, url: str, path: str) -> Exception:
    text = str(error)
    where = f"{url}/{path}" if path else url
    if _PAST_END.search(text):
        return PastTheEnd(where)
    if _NO_BUCKET.search(text):
        return no_bucket(url)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
        return TierCredentials(
            f"{where}: expected permission to {action}, found a refusal: {cleaned(text)}. Check the credentials in the "
            "environment (AWS_*, GOOGLE_*, AZURE_*) and what they may do in this bucket."
        )
    if isinstance(error, InvalidPathError):
        return BadTierName(f"{where}: expected a name that an object may have: {cleaned(text)}")
    if isinstance(error, NotSupportedError | NotImplementedError | UnknownConfigurationKeyError):
        return TierError(f"{where}: this object store cannot {action}: {cleaned(text)}")
    if _NO_CREDENTIALS.search(text):
        return TierCredentials(
            f"{where}: expected credentials in the environment to {action}, found none that work: {cleaned(text)}. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables of your cloud."
        )
    return TierUnavailable(f"{where}: could not {action}: {cleaned(text)}. The object store may be down; try again.")


def no_bucket(url: str) -> BadTierUrl:
    return BadTierUrl(f"{url}: expected this bucket to exist, found none. Create it, or correct the tier's URL.")


def cleaned(text: str) -> str:
    """One line: the server's own code and message where it gave them, else the client's, without addresses' queries."""
    text = text.split("Debug source")[0]
    code = _CODE.search(text)
    if code is not None:
        text = f"{code[1]}: {code[2]}" if code[2] else code[1]
    text = _USER_INFO.sub("//", _QUERY.sub("", _XML.sub("", text)))
    for name, value in os.environ.items():
        if len(value) >= _SHORT_SECRET and _SECRET_NAME.search(name) and not _PUBLIC_NAME.search(name):
            text = text.replace(value, "***")
    text = " ".join(text.split()).rstrip(".: ")
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
