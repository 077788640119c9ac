"""Stores of obstore: their endpoints and credentials.

They are found where the tools of each store find them, for example in ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``,
``GOOGLE_APPLICATION_CREDENTIALS`` and ``STORAGE_EMULATOR_HOST``.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import unquote

from stream.storage.remote import RemoteError

_TIMEOUT_S = 20
_CLIENT: dict[str, Any] = {"connect_timeout": timedelta(seconds=5), "allow_http": True}
_RENEW = timedelta(minutes=5)
"""Time after which credentials that end are asked for again."""


def object_key(url: str) -> str:
    """Return the name of the object of an address, which a web server has encoded.

    >>> object_key("s3://bucket/oxe/a%20b"), object_key("https://host/a%20b")
    ('oxe/a%20b', 'a b')
    """
    key = url.partition("://")[2].partition("/")[2]
    return unquote(key) if url.startswith("http") else key


def locate(url: str) -> tuple[Any, str]:
    """Return the store of an address, and the name of its object."""
    scheme, _, path = url.partition("://")
    return open_store(scheme, path.partition("/")[0]), object_key(url)


@cache
def open_store(scheme: str, place: str, *, timeout_s: float = _TIMEOUT_S, repeats: int = 0) -> Any:
    """Return a store of obstore.

    Args:
        scheme: ``s3``, ``gs``, ``http`` or ``https``.
        place: Bucket, or host and port.
        timeout_s: Seconds that one request may take.
        repeats: Times that obstore repeats a request, which ``ObjectReads.repeat`` does better: for parts of an object.
    """
    from obstore.store import GCSStore, HTTPStore, S3Store

    common: dict[str, Any] = {
        "retry_config": {"max_retries": repeats},
        "client_options": {**_CLIENT, "timeout": timedelta(seconds=timeout_s)},
    }
    if scheme == "s3":
        return S3Store(place, **common, **_s3_access(place))
    if scheme == "gs":
        return GCSStore(place, **common, **_google_access())
    return HTTPStore.from_url(f"{scheme}://{place}", **common)


def _endpoint(name: str, given: str) -> str:
    """Return an address as it is given; raise RemoteError, with its name, if it is something else."""
    if not re.fullmatch(r"https?://[^\s/:]\S*", given):
        # obstore would panic.
        shown = given.rpartition("@")[2]
        raise RemoteError(f"{name}={shown!r:.200}: expected an address such as https://HOST:PORT", refused=True)
    return given


def _s3_access(bucket: str) -> dict[str, Any]:
    """Return endpoint, region and credentials, found by botocore: it reads profiles too."""
    from botocore.session import Session

    session = Session()
    config = {"region": os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"}
    places = {name: os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}
    places["endpoint_url of the profile"] = session.get_scoped_config().get("endpoint_url")
    if endpoint := next((_endpoint(name, given) for name, given in places.items() if given), None):
        config["endpoint"] = endpoint
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return {"config": {**config, "skip_signature": True}}
    found = session.get_credentials()
    if found is None:
        raise RemoteError(
            f"s3://{bucket}: no credentials were found; set AWS_PROFILE or the other AWS_ variables, or "
            "AWS_SKIP_SIGNATURE=true for a public bucket",
            refused=True,
        )

    def credentials() -> Any:
        now = found.get_frozen_credentials()
        names = {"access_key_id": now.access_key, "secret_access_key": now.secret_key, "token": now.token}
        is_fixed = type(found).__name__ == "Credentials"
        return {**names, "expires_at": None if is_fixed else datetime.now(UTC) + _RENEW}

    return {"config": config, "credential_provider": credentials}


def _google_access() -> dict[str, Any]:
    """Return endpoint and credentials, found by google.auth; without any, objects are public."""
    if given := os.environ.get("STORAGE_EMULATOR_HOST"):
        emulator = _endpoint("STORAGE_EMULATOR_HOST", given if "://" in given else f"http://{given}")
        # Any credentials will do, but obstore writes with none.
        token = {"token": "emulator", "expires_at": None}
        return {"config": {"base_url": emulator.rstrip("/")}, "credential_provider": lambda: token}
    from google.auth import default
    from google.auth.exceptions import DefaultCredentialsError
    from obstore.auth.google import GoogleCredentialProvider

    try:
        # The key of a service account gives nothing without a scope.
        found, _ = default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        return {"credential_provider": GoogleCredentialProvider(found)}
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return {"config": {"skip_signature": True}}
