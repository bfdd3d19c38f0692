"""The machine's certificate authorities, written for Java."""

from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path

from kpsplit.devcluster.jars import java_trust_options, jks, system_certificates


def pem(der: bytes) -> str:
    body = base64.b64encode(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"


def test_every_certificate_of_the_bundle_is_read(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("# a comment\n" + pem(b"first") + "\n" + pem(b"second"))
    assert system_certificates({"SSL_CERT_FILE": str(bundle)}) == [b"first", b"second"]


def test_the_file_is_a_jks_of_trusted_certificates_with_its_digest() -> None:
    data = jks([b"DER"])
    body, digest = data[:-20], data[-20:]
    assert struct.unpack(">III", body[:12]) == (0xFEEDFEED, 2, 1)
    assert body.endswith(b"\x00\x05X.509" + struct.pack(">I", 3) + b"DER")
    assert digest == hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def test_java_is_told_where_the_store_is(tmp_path: Path) -> None:
    options = java_trust_options(tmp_path)
    if system_certificates():
        assert f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.jks'}" in options
        assert (tmp_path / "trust.jks").exists()
    else:
        assert options == []
