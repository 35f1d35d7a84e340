"""TLS by two files: a certificate (with its chain) and its private key, both PEM."""

from __future__ import annotations

import ssl
from pathlib import Path

from genius.errors import GeniusError


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """What the listener needs, or None without files. TLS 1.2 and newer."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise GeniusError("TLS needs both a certificate and its key (--tls-cert, --tls-key)")
    for file in (certificate, key):
        if not Path(file).is_file():
            raise GeniusError(f"no such file for TLS: {file}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> str:
        raise GeniusError(f"the key {key} is protected by a password: give one that is not")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if isinstance(error, GeniusError):
            raise
        raise GeniusError(f"cannot use {certificate} with {key} for TLS: {getattr(error, 'reason', None) or error}") from None
    return context
