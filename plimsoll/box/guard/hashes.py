"""Which program and which configuration a guard goes by, as hashes of their files."""

from contextlib import suppress
from importlib import import_module
from typing import Any


def sha256(content: bytes) -> str:
    """Return the hash in hexadecimal."""
    return str(_sha256(content).hexdigest())


def sha256_of(path: str) -> str | None:
    """Return the hash of a file in hexadecimal, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return sha256(file.read())
    except OSError:
        return None


def _hash_module() -> Any:  # noqa: ANN401  # a module
    """Return Python's own SHA-256: hashlib brings OpenSSL along, of which 4.7 MiB would be locked in memory."""
    for name in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return import_module(name)
    raise ImportError("this Python has no SHA-256")


_sha256 = _hash_module().sha256
