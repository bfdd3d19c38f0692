"""The certificate authorities that this machine trusts, as a Java trust store.

A bundled Java runtime knows the public authorities only. Where TLS is intercepted by a private one, the
machine's own bundle names it; this writes that bundle in Java's JKS format, without Java's tools, which the
bundled runtime does not have.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_PASSWORD = "changeit"  # JKS asks for one; it protects nothing: the content is public
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_SALT = b"Mighty Aphrodite"  # part of the format
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KNOWN_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def system_certificates(environ: Mapping[str, str] = os.environ) -> list[bytes]:
    """The trusted certificates of this machine, DER; empty if no bundle is found."""
    default = ssl.get_default_verify_paths().cafile
    for name in (environ.get("SSL_CERT_FILE"), default, *_KNOWN_BUNDLES):
        if name and Path(name).is_file():
            text = Path(name).read_text(encoding="ascii", errors="replace")
            if found := [ssl.PEM_cert_to_DER_cert(pem) for pem in _CERTIFICATE.findall(text)]:
                return found
    return []


def java_trust_options(folder: Path) -> list[str]:
    """Write a trust store into `folder` and return the options that make Java use it.

    There are none if no certificates are found.
    """
    certificates = system_certificates()
    if not certificates:
        return []
    path = folder / "trust.jks"
    path.write_bytes(jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def jks(certificates: Sequence[bytes]) -> bytes:
    """A JKS file with these certificates, all trusted."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    body += b"".join(_entry(number, der) for number, der in enumerate(certificates))
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _entry(number: int, der: bytes) -> bytes:
    created = struct.pack(">Q", 0)  # milliseconds since 1970; nobody reads it
    head = struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(f"ca-{number}") + created + _utf("X.509")
    return head + struct.pack(">I", len(der)) + der


def _utf(text: str) -> bytes:
    """Java's writeUTF, for ASCII."""
    return struct.pack(">H", len(text)) + text.encode("ascii")
