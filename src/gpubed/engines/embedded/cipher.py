"""Pulumi's passphrase secrets: PBKDF2-SHA256 and AES-256-GCM."""

from __future__ import annotations

import base64
import functools
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

from gpubed.core.errors import GpubedError

_ITERATIONS = 1_000_000
_WITNESS = "pulumi"
WRONG_KEY_HINT = (
    "the stack is encrypted with another passphrase, such as your own PULUMI_CONFIG_PASSPHRASE. "
    "Leave .gpubed/pulumi/passphrase as it is, and encrypt the stack with that: "
    'eval "$(gpubed env CLUSTER)" && PULUMI_CONFIG_PASSPHRASE=THE_OTHER pulumi stack '
    "change-secrets-provider passphrase -s CLUSTER --non-interactive < .gpubed/pulumi/passphrase"
)


class PassphraseCipher:
    """Encrypts and decrypts with a key derived from a passphrase and a salt.

    `salt` is Pulumi's salt line, `v1:<salt>:<ciphertext of a known word>`; None makes a new one at
    the first use, so that a preview of a new stack need not derive a key.
    """

    def __init__(self, passphrase: str, salt: str | None = None) -> None:
        self._passphrase = passphrase
        # Ciphertexts by scope (a URN) and plaintext: an unchanged value is written as before.
        self._ciphertexts: dict[tuple[str, str], str] = {}
        if salt is None:
            return
        try:
            version, encoded, witness = salt.split(":", 2)
            self._opening = salt, AESGCM(_derive(passphrase, base64.b64decode(encoded)))
            if version != "v1":
                raise ValueError(version)
        except ValueError:
            raise GpubedError(
                f"the encryption salt {salt[:20]!r} is not one of Pulumi's",
                "put the line `encryptionsalt:` of Pulumi.STACK.yaml back",
            ) from None
        if self._open(witness, "the salt line") != _WITNESS:
            raise _wrong_passphrase("the salt line")

    @functools.cached_property
    def _opening(self) -> tuple[str, AESGCM]:
        salt = os.urandom(8)
        aead = AESGCM(_derive(self._passphrase, salt))
        return f"v1:{base64.b64encode(salt).decode()}:{_seal(aead, _WITNESS)}", aead

    @property
    def salt(self) -> str:
        """The salt line."""
        return self._opening[0]

    def encrypt(self, plaintext: str, scope: str = "") -> str:
        """Return the ciphertext of a value, always the same within a scope."""
        found = self._ciphertexts.get((scope, plaintext))
        if found is None:
            found = self._ciphertexts[scope, plaintext] = _seal(self._opening[1], plaintext)
        return found

    def decrypt(self, ciphertext: str, scope: str = "") -> str:
        """Decrypt a ciphertext; `encrypt` returns the same one for this text and scope."""
        plaintext = self._open(ciphertext, scope or "the configuration")
        self._ciphertexts[scope, plaintext] = ciphertext
        return plaintext

    def _open(self, ciphertext: str, where: str) -> str:
        try:
            _, nonce, sealed = ciphertext.split(":")
            raw = self._opening[1].decrypt(base64.b64decode(nonce), base64.b64decode(sealed), None)
            return raw.decode()
        except (InvalidTag, ValueError) as error:
            raise _wrong_passphrase(where) from error


def _wrong_passphrase(where: str) -> GpubedError:
    return GpubedError(f"the passphrase does not decrypt {where[:200]}", WRONG_KEY_HINT)


def _seal(aead: AESGCM, plaintext: str) -> str:
    nonce = os.urandom(12)
    sealed = aead.encrypt(nonce, plaintext.encode(), None)
    return f"v1:{base64.b64encode(nonce).decode()}:{base64.b64encode(sealed).decode()}"


@functools.lru_cache(maxsize=16)
def _derive(passphrase: str, salt: bytes) -> bytes:
    return PBKDF2HMAC(SHA256(), 32, salt, _ITERATIONS).derive(passphrase.encode())
