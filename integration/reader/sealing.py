"""Keys, envelopes and sealed bytes (FORMAT.md, sections 2 and 3)."""

import hashlib
import hmac
import re
import subprocess

import hashing
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FRAME = 1 << 20


def derive(key, purpose, salt=b""):
    return hashing.derive("holdfast 1 " + purpose, key + salt)


def zstd(data, length):
    try:
        from compression import zstd

        return zstd.decompress(data)
    except ImportError:
        pass
    try:
        import zstandard

        return zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except ImportError:
        return subprocess.run(["zstd", "-dcq"], input=data, capture_output=True, check=True).stdout


def open_sealed(key, aad, sealed, cap=64 << 20):
    codec, opened = sealed[0], int.from_bytes(sealed[1:5], "little")
    if opened > cap or codec > 1:
        raise ValueError("too large, or an unknown codec")
    body = sealed[5:]
    frames = max(1, -(-len(body) // (FRAME + 16)))
    length = len(body) - 16 * frames
    if length < 0 or max(1, -(-length // FRAME)) != frames:
        raise ValueError("an impossible length")
    plain = b""
    for i in range(frames):
        nonce = i.to_bytes(8, "little") + bytes(3) + bytes([i == frames - 1])
        part = body[i * FRAME : min((i + 1) * FRAME, length)]
        tag = body[length + 16 * i :][:16]
        plain += AESGCM(key).decrypt(nonce, part + tag, sealed[:5] + aad)
    plain = zstd(plain, opened) if codec else plain
    if len(plain) != opened:
        raise ValueError("another length than claimed")
    return plain


def token(kind, data):
    lines = [line for line in map(str.strip, data.splitlines()) if line and not line.startswith("#")]
    (line,) = lines
    if not line.startswith(f"hf-{kind}-"):
        raise ValueError(f"no {kind}")
    body = bytes.fromhex(re.sub(r"\s", "", line[len(kind) + 4 :]))
    body, check = body[:-4], body[-4:]
    if hashing.hash(kind.encode() + b"\0" + body)[:4] != check:
        raise ValueError(f"a {kind} with a wrong check sum")
    return body


def open_protected(data, passphrase):
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    body = token("protected-identity", data)
    recipient, cost, salt, sealed = body[:32], body[32:44], body[44:60], body[60:]
    memory, passes, lanes = (int.from_bytes(cost[i : i + 4], "little") for i in (0, 4, 8))
    stretch = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory)
    key = derive(stretch.derive(passphrase.encode()), "passphrase", salt)
    return open_sealed(key, recipient + cost, sealed, 32)


def extract(suite, salt, label, ikm):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, hashlib.sha256)


def expand(suite, key, label, info, length):
    info = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    out, block = b"", b""
    while len(out) < length:
        block = hmac.digest(key, block + info + bytes([len(out) // 32 + 1]), hashlib.sha256)
        out += block
    return out[:length]


def open_envelope(identity, repo, what, envelopes):
    """RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM."""
    private = X25519PrivateKey.from_private_bytes(identity)
    public = private.public_key().public_bytes_raw()
    (mine,) = [e for e in envelopes if e[:8] == hashing.hash(public)[:8]]
    enc, sealed = mine[8:40], mine[40:]
    kem = b"KEM" + (0x20).to_bytes(2, "big")
    dh = private.exchange(X25519PublicKey.from_public_bytes(enc))
    shared = expand(kem, extract(kem, b"", b"eae_prk", dh), b"shared_secret", enc + public, 32)
    suite = b"HPKE" + b"".join(n.to_bytes(2, "big") for n in (0x20, 1, 2))
    info = b"holdfast 1 envelope" + repo + what
    context = b"\0" + extract(suite, b"", b"psk_id_hash", b"") + extract(suite, b"", b"info_hash", info)
    secret = extract(suite, shared, b"secret", b"")
    key = expand(suite, secret, b"key", context, 32)
    return AESGCM(key).decrypt(expand(suite, secret, b"base_nonce", context, 12), sealed, b"")
