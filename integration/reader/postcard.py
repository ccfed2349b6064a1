"""Postcard, as far as FORMAT.md uses it. A shape is a function that takes a `Reader` and answers a value."""


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        if length > len(self.data) - self.at:
            raise ValueError("cut short")
        self.at += length
        return self.data[self.at - length : self.at]

    def done(self):
        return self.at == len(self.data)


def fixed(length):
    return lambda r: r.take(length)


def little(length):
    return lambda r: int.from_bytes(r.take(length), "little")


def u8(r):
    return r.take(1)[0]


def flag(r):
    return {0: False, 1: True}[u8(r)]


def unsigned(r):
    value = 0
    for shift in range(0, 70, 7):
        byte = u8(r)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("a number without end")


def signed(r):
    raw = unsigned(r)
    return raw >> 1 ^ -(raw & 1)


def raw(r):
    return r.take(unsigned(r))


def text(r):
    return raw(r).decode()


def listed(shape):
    return lambda r: [shape(r) for _ in range(unsigned(r))]


def maybe(shape):
    return lambda r: shape(r) if flag(r) else None


def record(**fields):
    return lambda r: {name: shape(r) for name, shape in fields.items()}


def variant(*shapes):
    def read(r):
        name, shape = shapes[unsigned(r)]
        return {"entry": name, "value": shape(r)}

    return read


def nothing(_):
    return None


def whole(shape, data):
    reader = Reader(data)
    value = shape(reader)
    if not reader.done():
        raise ValueError("trailing bytes")
    return value
