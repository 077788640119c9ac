"""Stores of obstore: their endpoints and credentials.

Both are read from where the tools of each store keep them, for example ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``,
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
"""Lifetime of credentials that expire; then they are requested again."""


def object_key(url: str) -> str:
    """Return the name of the object of an address, which a web server has encoded.

    >>> object_key("s3://bucket/oxe/a%20b"), object_key("https://host/a%20b")
    ('oxe/a%20b', 'a b')
    """
    encoded_key = url.partition("://")[2].partition("/")[2]
    return unquote(encoded_key) if url.startswith("http") else encoded_key


def locate(url: str) -> tuple[Any, str]:
    """Return the store of an address, and the name of its object."""
    scheme, _, path = url.partition("://")
    return open_store(scheme, path.partition("/")[0]), object_key(url)


@cache
def open_store(scheme: str, bucket: str, *, timeout_s: float = _TIMEOUT_S, repeats: int = 0) -> Any:
    """Return a store of obstore, or the Hub with the same methods.

    Args:
        bucket: Bucket, or host and port.
        timeout_s: Seconds that one request may take.
        repeats: Retries of obstore, for parts of an object; ``ObjectReads.repeat`` retries all other requests better.
    """
    if scheme == "hf":
        from stream.storage.hub_store import HubStore

        return HubStore(timeout_s=timeout_s)
    from obstore.store import GCSStore, HTTPStore, S3Store

    store_options: dict[str, Any] = {
        "retry_config": {"max_retries": repeats},
        "client_options": {**_CLIENT, "timeout": timedelta(seconds=timeout_s)},
    }
    if scheme == "s3":
        return S3Store(bucket, **store_options, **_s3_access(bucket))
    if scheme == "gs":
        return GCSStore(bucket, **store_options, **_google_access())
    return HTTPStore.from_url(f"{scheme}://{bucket}", **store_options)


def _endpoint(setting: str, address: str) -> str:
    """Return an address as it is; raise RemoteError, with the name of its setting, if it is something else."""
    if not re.fullmatch(r"https?://[^\s/:]\S*", address):
        # obstore would panic.
        without_password = address.rpartition("@")[2]
        message = f"{setting}={without_password!r:.200}: expected an address such as https://HOST:PORT"
        raise RemoteError(message, refused=True)
    return address


def _s3_access(bucket: str) -> dict[str, Any]:
    """Return endpoint, region and credentials, found by botocore: it reads profiles too."""
    from botocore.session import Session

    session = Session()
    config = {"region": os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"}
    endpoints = {name: os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}
    endpoints["endpoint_url of the profile"] = session.get_scoped_config().get("endpoint_url")
    if endpoint := next((_endpoint(name, address) for name, address in endpoints.items() if address), None):
        config["endpoint"] = endpoint
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return {"config": {**config, "skip_signature": True}}
    credentials = session.get_credentials()
    if credentials is None:
        remedy = "set AWS_PROFILE or the other AWS_ variables, or AWS_SKIP_SIGNATURE=true for a public bucket"
        raise RemoteError(f"s3://{bucket}: no credentials were found; {remedy}", refused=True)

    def provide() -> Any:
        current = credentials.get_frozen_credentials()
        is_fixed = type(credentials).__name__ == "Credentials"
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token,
            "expires_at": None if is_fixed else datetime.now(UTC) + _RENEW,
        }

    return {"config": config, "credential_provider": provide}


def _google_access() -> dict[str, Any]:
    """Return endpoint and credentials, found by google.auth; without any, objects are public."""
    if host := os.environ.get("STORAGE_EMULATOR_HOST"):
        emulator = _endpoint("STORAGE_EMULATOR_HOST", host if "://" in host else f"http://{host}")
        # Any credentials will do, but obstore writes with none.
        token = {"token": "emulator", "expires_at": None}
        return {"config": {"base_url": emulator.rstrip("/")}, "credential_provider": lambda: token}
    from google.auth import default
    from google.auth.exceptions import DefaultCredentialsError
    from obstore.auth.google import GoogleCredentialProvider

    try:
        # The key of a service account gives nothing without a scope.
        credentials, _ = default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        return {"credential_provider": GoogleCredentialProvider(credentials)}
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return {"config": {"skip_signature": True}}
