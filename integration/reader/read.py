#!/usr/bin/env python3
"""Reads a holdfast repository in a folder, with an identity and nothing of holdfast: written from FORMAT.md alone.

    read.py FOLDER IDENTITY-FILE [--repository ID]

Where a passphrase protects the identity, it stands in the environment as HOLDFAST_PASSPHRASE.
Prints as JSON what each source's newest stream holds. Needs Python 3.11, `cryptography`, and one of Python 3.14,
`zstandard` or the program `zstd`; and is slow without the package `blake3`. A second opinion and a last resort.
"""

import argparse
import base64
import json
import os
import pathlib
import sys

import hashing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from postcard import (Reader, fixed, flag, listed, little, maybe, nothing, raw, record, signed, text, u8, unsigned,
                      variant, whole)
from sealing import derive, open_envelope, open_protected, open_sealed, token

epoch = record(number=unsigned, writer=fixed(8))
place = record(branch=unsigned, position=unsigned)
span = record(branch=unsigned, start=unsigned, end=unsigned)
layer = listed(record(epoch=epoch, number=unsigned, first=raw, last=raw, rows=unsigned, bytes=unsigned))
note = record(place=place, time=signed, body=raw)
gap = record(span=span, cause=text, noticed=signed)
progress = record(run=fixed(8), began=signed, layers=listed(layer), body=raw)
checkpoint = record(run=fixed(8), begin=place, serves=place, began=signed, ended=signed, layers=listed(layer),
                    rows=unsigned, bytes=unsigned, sent=unsigned, suspect=maybe(text), body=raw)
sample = record(epoch=epoch, number=unsigned, place=place, time=signed)
catalog = record(checkpoints=listed(checkpoint), runs=listed(progress), gaps=listed(gap), notes=listed(note),
                 samples=listed(sample), spans=listed(span))
predecessor = record(epoch=epoch, last=unsigned, digest=fixed(32))
took = record(predecessor=maybe(predecessor), dead=listed(epoch), closed=listed(epoch))
extent = record(pack=epoch, pack_number=unsigned, offset=unsigned, length=unsigned, opened=unsigned, key_epoch=epoch,
                piece=fixed(16))
row = record(shared=unsigned, rest=raw, value=raw, held=listed(record(extent=extent, hash=fixed(32))))


def wrap(value):
    """A difference of 64 bits."""
    return value % (1 << 64)


def marks(r):
    r, out = Reader(raw(r)), []
    branch = position = time = number = 0
    while not r.done():
        kind = u8(r)
        if kind == 3:
            branch = unsigned(r)
            continue
        position = wrap(position + signed(r))
        mark = {"branch": branch, "position": position, "begin": wrap(position - signed(r))}
        time += signed(r)
        mark["time"] = time
        if kind == 0:
            number = wrap(number + signed(r))
            mark["id"] = number
        elif kind == 1:
            mark["name"] = text(r)
        elif kind != 2:
            raise ValueError("an unknown kind of mark")
        out.append(mark)
    return out


entry = variant(
    ("log", record(span=span, offset=unsigned, length=unsigned, whole=flag)),
    ("marks", marks),
    ("note", note),
    ("gap", gap),
    ("progress", progress),
    ("checkpoint", checkpoint),
    ("abandoned", fixed(8)),
    ("cursor", raw),
    ("catalog", catalog),
    ("took", took),
    ("clocks", record(source=maybe(signed), host=signed, store=maybe(signed))),
    ("cut", record(name=text, began=signed)),
    ("doom", listed(text)),
    ("release", nothing),
)
header = record(spans=listed(span), written=signed, uptime=unsigned, vouched=maybe(signed),
                marks=maybe(record(oldest=signed, newest=signed)), mark_count=unsigned, heartbeat=unsigned,
                catalog=maybe(record(epoch=epoch, number=unsigned)), release=flag)
end = record(by=epoch, written=signed)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def expect(condition, what):
    if not condition:
        raise ValueError(what)


def epoch_name(e):
    return f"{e['number']:016x}" + (f"-{e['writer'].hex()}" if any(e["writer"]) else "")


def epoch_bytes(e):
    return e["number"].to_bytes(8, "little") + e["writer"]


def parse_epoch(name):
    number, _, writer = name.partition("-")
    return {"number": int(number, 16), "writer": bytes.fromhex(writer) if writer else bytes(8)}


def newest(folder):
    return max((path.name for path in folder.iterdir()), default=None)


class Repository:
    def __init__(self, folder, identity, expected=None):
        self.folder, self.identity = folder, identity
        about = json.loads((folder / "repo.json").read_bytes())
        self.root = bytes.fromhex(about["root"])
        self.id = hashing.hash(self.root)
        expect(about["holdfast"] == 1 and about["repository"] == self.id.hex(), "repo.json does not prove itself")
        expect(expected in (None, self.id.hex()), "this is another repository")
        ring, generation = self.ring("holdfast repository ring 1", folder / "ring", repository=self.id.hex())
        envelopes = [base64.b64decode(e) for e in ring["envelopes"]]
        key = open_envelope(identity, self.id, b"\0" + generation, envelopes)
        secret = record(root=fixed(32), names=listed(text), sources=listed(record(id=fixed(8), name=text, kind=text)))
        plain = open_sealed(key, self.id + generation, base64.b64decode(ring["sealed"]))
        self.sources = whole(secret, plain)["sources"]

    def ring(self, title, folder, **named):
        name = newest(folder)
        found, signature, body = (folder / name).read_bytes().split(b"\n", 2)
        expect(found == title.encode(), "no such ring")
        Ed25519PublicKey.from_public_bytes(self.root).verify(bytes.fromhex(signature.decode()), found + b"\n" + body)
        ring = json.loads(body)
        expect(all(ring[k] == v for k, v in named.items()) and ring["generation"] == int(name, 16), "a ring of another")
        return ring, ring["generation"].to_bytes(8, "little")

    def source(self, source):
        folder, named = self.folder / source["id"].hex(), {"repository": self.id.hex(), "source": source["id"].hex()}
        ring, generation = self.ring("holdfast source ring 1", folder / "ring", **named)
        envelopes = [base64.b64decode(e) for e in ring["envelopes"]]
        key = open_envelope(self.identity, self.id, b"\1" + source["id"], envelopes)
        sealed = base64.b64decode(ring["sealed"])
        plain = open_sealed(derive(key, "source record", sealed[:16]), source["id"] + generation, sealed[16:])
        about = whole(record(name=text, kind=text, lineages=listed(text)), plain)
        lineages = [Lineage(self, key, source["id"], path.parent) for path in sorted(folder.glob("*/lineage"))]
        return {**about, "holds": self.holds(key, folder), "streams": [lineage.read() for lineage in lineages]}

    def holds(self, key, folder):
        shape = record(host=text, purpose=text, written=signed)
        paths = sorted(folder.glob("holds/*/*"))
        return [open_record(self.folder, path, key, b"HFhold\0\0", "hold", shape) for path in paths]


def open_record(root, path, key, magic, purpose, shape):
    data, name = path.read_bytes(), path.relative_to(root).as_posix().encode()
    expect(data[:10] == magic + b"\1\0", "no such record")
    return whole(shape, open_sealed(derive(key, purpose, data[10:26]), data[:26] + name, data[26:]))


class Lineage:
    def __init__(self, repository, key, source, folder):
        self.repository, self.key, self.folder, self.keys = repository, key, folder, {}
        self.id, self.path = bytes.fromhex(folder.name), folder.relative_to(repository.folder).as_posix()
        shape = record(identity=text, created=signed, by=maybe(text))
        self.about = open_record(repository.folder, folder / "lineage", key, b"HFline\0\0", "lineage record", shape)
        naming = derive(key, "lineage id")
        name = hashing.keyed(naming, repository.id + source + self.about["identity"].encode())
        expect(name[:8] == self.id, "a lineage under another name")

    def data_key(self, e):
        name = epoch_name(e)
        if name not in self.keys:
            data = (self.folder / "epochs" / name).read_bytes()
            expect(hashing.keyed(derive(self.key, "epoch object"), data[:-32]) == data[-32:], "a forged epoch")
            r = Reader(data[:-32])
            expect(r.take(10) == b"HFepoch\0\1\0", "no epoch object")
            count = little(2)(r)
            expect(r.take(24) == self.id + epoch_bytes(e), "another epoch")
            r.take(8 + 16 + 8 + 8)
            envelopes = [r.take(88) for _ in range(count)]
            expect(r.done(), "trailing bytes")
            what = b"\2" + self.id + epoch_bytes(e)
            self.keys[name] = open_envelope(self.repository.identity, self.repository.id, what, envelopes)
        return self.keys[name]

    def read(self):
        """Backwards from the highest epoch that has a number 0."""
        names = [p.name for p in (self.folder / "log").iterdir() if (p / f"{0:016x}").exists()]
        at = max(map(parse_epoch, names), key=lambda e: (e["number"], e["writer"]))
        last, digest, epochs = None, None, []
        while at is not None:
            objects = self.epoch(at, last)
            expect(digest in (None, objects[-1]["digest"]), "the chain is broken between epochs")
            epochs.append({"epoch": at, "objects": objects})
            before = objects[0]["entries"][0]["value"]["predecessor"]
            at, last, digest = (before and before["epoch"]), (before and before["last"]), (before and before["digest"])
            expect(objects[0]["previous"] == (digest or bytes(32)), "the chain is broken")
        return {**self.about, "epochs": epochs[::-1]}

    def epoch(self, e, last):
        merged = {}
        for path in sorted(self.folder.glob(f"merged/{epoch_name(e)}/*")):
            merged |= self.merged(e, path)
        objects, number = [], 0
        while last is None or number <= last:
            path = self.folder / "log" / epoch_name(e) / f"{number:016x}"
            whole = merged.get(number) or (path.read_bytes() if path.exists() else None)
            if whole is None or (found := self.object(e, number, whole)) is None:
                expect(last is None, "a hole")
                break
            expect(not objects or objects[-1]["digest"] == found["previous"], "the chain is broken")
            objects.append(found)
            number += 1
        return objects

    def merged(self, e, path):
        data, (start, to) = path.read_bytes(), (int(part, 16) for part in path.name.split("-"))
        count = to - start + 1
        head = 116 + 8 * count + 64
        expect(data[:36] == b"HFmerge\0\1\0\0\0" + self.id + epoch_bytes(e), "another merged object")
        key = derive(self.key, "merged object")
        expect(hashing.keyed(key, data[: head - 32]) == data[head - 32 : head], "a forged merged object")
        r = Reader(data[36:])
        expect((little(8)(r), little(8)(r)) == (start, to), "a merged object under another name")
        r.take(64)
        rows = [(little(4)(r), little(4)(r)) for _ in range(count)]
        fronts = sum(front for front, _ in rows)
        expect(hashing.hash(data[head : head + fronts]) == r.take(32), "damaged fronts")
        front, body, out = Reader(data[head : head + fronts]), Reader(data[head + fronts :]), {}
        for number, row in enumerate(rows, start):
            out[number] = front.take(row[0]) + body.take(row[1])
        expect(body.done(), "trailing bytes")
        return out

    def object(self, e, number, data):
        r = Reader(data)
        expect(r.take(10) == b"HFlog\0\0\0\1\0", "no log object")
        kind = little(2)(r)
        expect(r.take(32) == self.id + epoch_bytes(e) + number.to_bytes(8, "little"), "another object")
        salt, previous, key_digest, closed_digest = r.take(16), r.take(32), r.take(32), r.take(32)
        lengths = [little(4)(r) for _ in range(3)]
        prelude, sealed = data[:168], r.take(lengths[0])
        expect(little(4)(r) == crc32c(prelude + sealed), "a damaged header")
        plain = open_sealed(derive(self.key, "log object header", salt), prelude, sealed, 1 << 20)
        if kind == 1:
            whole(end, plain)
            return None
        out = {"number": number, "header": whole(header, plain), "entries": [], "log": b"", "previous": previous,
               "digest": hashing.hash(prelude + sealed)}
        key_half, closed_half = r.take(lengths[1]), r.take(lengths[2])
        expect(r.done(), "trailing bytes")
        expect((hashing.hash(key_half), hashing.hash(closed_half)) == (key_digest, closed_digest), "a damaged body")
        if key_half:
            key = derive(self.key, "log object key half", salt)
            entries = Reader(open_sealed(key, prelude[:60], key_half))
            while not entries.done():
                out["entries"].append(whole(entry, entries.take(unsigned(entries))))
        if closed_half:
            key = derive(self.data_key(e), "log object closed half", salt)
            out["log"] = open_sealed(key, prelude[:60], closed_half)
        for found in out["entries"]:
            if found["entry"] == "checkpoint":
                found["table"] = [self.table(o) for layers in found["value"]["layers"] for o in layers]
        return out

    def table(self, named):
        path = self.folder / "state" / epoch_name(named["epoch"]) / f"{named['number']:016x}"
        data, name = path.read_bytes(), f"{self.path}/state/{epoch_name(named['epoch'])}/{named['number']:016x}"
        expect(data[:8] == b"HFstate1" and hashing.hash(data[:-32]) == data[-32:], "a damaged table layer")
        salt, lengths = data[-56:-40], [int.from_bytes(data[-40 + i :][:4], "little") for i in (0, 4)]

        def part(kind, page, sealed):
            key = derive(self.key, "table layer", salt + bytes([kind]) + page.to_bytes(4, "little"))
            return open_sealed(key, name.encode(), sealed)

        index = part(2, 0, data[-56 - lengths[1] : -56])
        rows, at = [], 8
        for number, page in enumerate(whole(listed(record(first=raw, rows=unsigned, length=unsigned)), index)):
            key, opened = b"", Reader(part(0, number, data[at : at + page["length"]]))
            at += page["length"]
            while not opened.done():
                found = row(opened)
                key = key[: found["shared"]] + found["rest"]
                rows.append({"key": key, "value": found["value"], "content": [self.piece(h) for h in found["held"]]})
        return rows

    def piece(self, held):
        e = held["extent"]
        pack = self.folder / "packs" / epoch_name(e["pack"]) / f"{e['pack_number']:016x}"
        data = pack.read_bytes()
        expect(data[:8] == b"HFpack01" and hashing.hash(data[:-32]) == data[-32:], "a damaged pack")
        key = derive(self.data_key(e["key_epoch"]), "piece", e["piece"])
        plain = open_sealed(key, e["piece"], data[e["offset"] :][: e["length"]], 4 << 20)
        expect(hashing.hash(plain) == held["hash"], "a piece with other content")
        return plain


def printable(value):
    if isinstance(value, bytes):
        try:
            decoded = value.decode()
        except UnicodeDecodeError:
            return value.hex()
        return decoded if decoded.isprintable() or "\n" in decoded else value.hex()
    raise TypeError(type(value))


def main():
    parser = argparse.ArgumentParser(description="reads a holdfast repository without holdfast")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("identity", type=pathlib.Path)
    parser.add_argument("--repository")
    options = parser.parse_args()
    words = options.identity.read_text()
    passphrase = os.environ.get("HOLDFAST_PASSPHRASE")
    identity = open_protected(words, passphrase) if "hf-protected-" in words else token("identity", words)
    repository = Repository(options.folder, identity, options.repository)
    found = [repository.source(source) for source in repository.sources]
    json.dump(found, sys.stdout, default=printable, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
