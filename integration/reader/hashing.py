"""BLAKE3 in plain Python, after its specification: slow, and enough for a second opinion. Where the package
`blake3` is installed it is used instead, for repositories that are not tiny."""

try:
    import blake3 as fast
except ImportError:
    fast = None

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
START, END, PARENT, ROOT, KEYED, CONTEXT, MATERIAL = (1 << bit for bit in range(7))
MASK = 0xFFFFFFFF


def rotate(word, by):
    return (word >> by | word << (32 - by)) & MASK


def mix(v, a, b, c, d, x, y):
    v[a] = (v[a] + v[b] + x) & MASK
    v[d] = rotate(v[d] ^ v[a], 16)
    v[c] = (v[c] + v[d]) & MASK
    v[b] = rotate(v[b] ^ v[c], 12)
    v[a] = (v[a] + v[b] + y) & MASK
    v[d] = rotate(v[d] ^ v[a], 8)
    v[c] = (v[c] + v[d]) & MASK
    v[b] = rotate(v[b] ^ v[c], 7)


def compress(chain, block, counter, flags):
    m = [int.from_bytes(block[i : i + 4].ljust(4, b"\0"), "little") for i in range(0, 64, 4)]
    v = [*chain, *IV[:4], counter & MASK, counter >> 32, len(block), flags]
    for _ in range(7):
        for i in range(4):
            mix(v, i, 4 + i, 8 + i, 12 + i, m[2 * i], m[2 * i + 1])
        for i in range(4):
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[8 + 2 * i], m[9 + 2 * i])
        m = [m[i] for i in ORDER]
    return [v[i] ^ v[i + 8] for i in range(8)]


def tree(key, data, counter, flags, root):
    if len(data) <= 1024:
        blocks = [data[i : i + 64] for i in range(0, len(data), 64)] or [b""]
        chain = key
        for i, block in enumerate(blocks):
            last = i == len(blocks) - 1
            bits = flags | (START if i == 0 else 0) | (END if last else 0) | (ROOT if last and root else 0)
            chain = compress(chain, block, counter, bits)
        return chain
    left = 1024
    while left * 2 < len(data):
        left *= 2
    halves = tree(key, data[:left], counter, flags, False) + tree(key, data[left:], counter + left // 1024, flags, False)
    return compress(key, words(halves), 0, flags | PARENT | (ROOT if root else 0))


def words(chain):
    return b"".join(word.to_bytes(4, "little") for word in chain)


def split(key):
    return [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]


def hash(data):
    if fast:
        return fast.blake3(data).digest()
    return words(tree(IV, data, 0, 0, True))


def keyed(key, data):
    return words(tree(split(key), data, 0, KEYED, True))


def derive(context, material):
    key = tree(IV, context.encode(), 0, CONTEXT, True)
    return words(tree(key, material, 0, MATERIAL, True))


assert words(tree(IV, b"", 0, 0, True)).hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
