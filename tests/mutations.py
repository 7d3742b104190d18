"""Mutated messages, for tests that hammer what reads bytes from outside. Seeded: the same seed gives the same bytes.

    for kind, content in mutants(corpus, seed, number): ...

`corpus` holds honest messages (arrays and a header as one .npz). The mutations know this structure: fields dropped,
types swapped, numbers extreme, arrays reshaped, lengths that lie, the list of entries damaged. `hammer` sends them and
checks what comes back, how long it takes and how much memory.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import math
import random
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.federation.wire import HEADER, Arrays, Header, from_bytes, hash_of

MEMORY = 64 * 2**20  # bytes beyond the message's own
SECONDS = 60.0  # of processor time for one message; most of it to compile a kernel that no message needed before
NPY = ".npy"
BATCH = 200  # messages that are made, then sent: only sending is measured


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


EXTREMES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 1000, 1001, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400,
    -(10**400), 0.5, -0.0, 1e-320, 1e12, 1.1e12, 1e308, -1e308, math.inf, -math.inf, math.nan, "", "0", "1e400", "nan",
    "-inf", "auto", "none", "l2:1e308", "l2:nan", "l2:1e-300", "l1:1e11", "box:nan,nan", "box:0,inf", "group-l2:1e9",
    "fixed:0=1", "fixed:99999999999999999999=1", "fixed:0=nan", "huber:1e-300", "huber:0.1", "fedprox:1e300",
    "fedprox:nan", "fedprox:" + "1," * 300, "logistic", "0x1p+1023", "0x1p+99999", "0x1.8p+1", "a" * 5000,
    "\x1b[31m", "a\nb", "\ud800", "\u202e", "é", "../../x", "a-run", [], {}, [[]], [0] * 999, [1], deep(5), deep(60),
    {"a": {"b": [1]}}, ["t", [0, 1, 2, 3], 3], ["t", [0, 0, 10**30], -1], ["t", "0123", 4], ["t", [True], 0.5],
)  # fmt: skip
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-310, 1e-20, 1e6, 9e11, 1e13, 1e300, -1e300, math.inf, -math.inf, math.nan)
DESCRIPTIONS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 99999999999999), }",
    "{'descr': '<f8', 'fortran_order': True, 'shape': (15, 3), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<f8'), ('b', '|O')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '|V9999999999', 'fortran_order': False, 'shape': (), }",
    "{'descr': '>f8', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1, " * 60 + "), }",
    "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (1,), }",
    "(" * 3000,
    "-" * 9000 + "1",
    "",
)
TEXTS = (
    b"[" * 100_000, b"{" + b'"a":{' * 5000, b'{"run": "a", "run": "b"}', b'{"round": NaN}', b'{"round": 1e999}',
    b'{"run": "\xff\xfe"}', b'{"round": ' + b"9" * 5000 + b"}", b"[" + b"[]," * 300_000 + b"[]]",
    b"null", b"1", b'"text"', b"", b"\x00" * 100, b'{"stage": "open"}', b'{"stage": 1, "run": 2, "client": "0"}',
)  # fmt: skip
TEXT_ARRAYS = ("invitation", "heads")  # that hold JSON


@cache
def _parsed(content: bytes) -> tuple[Arrays, Header]:
    return from_bytes(content)


class Message:
    """An honest message taken apart, to be put together wrongly."""

    def __init__(self, content: bytes) -> None:
        arrays, header = _parsed(content)
        self.arrays, self.header = dict(arrays), copy.deepcopy(header)
        self.raw: dict[str, bytes] = {}  # entries as they are written, in place of an array or the header
        self.more: list[tuple[str, bytes]] = []

    def entries(self) -> list[tuple[str, bytes]]:
        text = json.dumps(self.header, sort_keys=True).encode()
        found = {HEADER: npy(np.frombuffer(text, np.uint8))} | {name: npy(one) for name, one in self.arrays.items()}
        return [*(found | self.raw).items(), *self.more]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def described(text: str, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    """An array's bytes under a description that may lie."""
    said = text.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(said) % 65536) + said + data


def packed(entries: Iterable[tuple[str, bytes]], compression: int = ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(), ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # names that come twice
        for name, data in entries:
            with archive.open(name + NPY, "w", force_zip64=True) as entry:
                entry.write(data)
    return file.getvalue()


# --- mutations of the structure: (random, message)


def drop_field(rng: random.Random, message: Message) -> None:
    message.header.pop(rng.choice(list(message.header)), None) if message.header else None


def swap_field(rng: random.Random, message: Message) -> None:
    if message.header:
        message.header[rng.choice(list(message.header))] = rng.choice(EXTREMES)


def swap_setting(rng: random.Random, message: Message) -> None:
    """A setting changed, under a hash that fits if there are such settings; in a run of its own, which gets further."""
    words = message.header.get("settings")
    if not isinstance(words, dict) or not words:
        return swap_field(rng, message)
    name = rng.choice([*words, "unheard-of"]) if rng.random() < 0.9 else rng.choice(list(words))
    words[name] = rng.choice(EXTREMES)
    if rng.random() < 0.1:
        words.pop(name)
    with suppress(Exception):
        message.header["settings_hash"] = hash_of(Settings.from_dict(words))
    return fresh_run(rng, message)


def fresh_run(rng: random.Random, message: Message) -> None:
    message.header |= {"run": f"run-{rng.getrandbits(40)}", "counted": -1}
    if "round" in message.header and rng.random() < 0.8:
        message.header["round"] = 1


def drop_array(rng: random.Random, message: Message) -> None:
    if message.arrays:
        message.arrays.pop(rng.choice(list(message.arrays)))


def rename_array(rng: random.Random, message: Message) -> None:
    if message.arrays:
        names = [
            "V",
            "shared/beta",
            "shared/control",
            "shared/posterior",
            "shared/",
            "invitation",
            "session",
            "heads",
            "x" * 300,
            "\x1b",
        ]
        message.arrays[rng.choice(names)] = message.arrays.pop(rng.choice(list(message.arrays)))


def reshape_array(rng: random.Random, message: Message) -> None:
    for name in [rng.choice(list(message.arrays))] if message.arrays else []:
        array = message.arrays[name]
        message.arrays[name] = rng.choice(
            [array.ravel(), array.T, array[..., None], array[:1], array[:0], np.asfortranarray(array), np.zeros((0, 3)),
             array.reshape(-1, 1), np.zeros(()), np.concatenate([array.ravel()] * 2)] if array.ndim else [array[None]]
        )  # fmt: skip


def retype_array(rng: random.Random, message: Message) -> None:
    for name in [rng.choice(list(message.arrays))] if message.arrays else []:
        kind = rng.choice(["?", "b", "B", "h", "i", "q", "Q", "e", "f", "d", "D", ">f8", ">i8", "U4", "S3"])
        with np.errstate(all="ignore"), warnings.catch_warnings(), suppress(ValueError):  # a text that is no number
            warnings.simplefilter("ignore")
            message.arrays[name] = message.arrays[name].astype(kind)


def change_numbers(rng: random.Random, message: Message) -> None:
    for name in [rng.choice(list(message.arrays))] if message.arrays else []:
        array = np.array(message.arrays[name])
        if array.size and array.dtype.kind not in "US":
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                extreme = np.asarray(rng.choice(NUMBERS)).astype(array.dtype)
            array.flat[:: rng.choice([1, max(array.size - 1, 1)])] = extreme
        message.arrays[name] = array


def change_text(rng: random.Random, message: Message) -> None:
    """A value somewhere in an array that holds JSON: changed, dropped, or there twice."""
    names = [name for name, array in message.arrays.items() if name in TEXT_ARRAYS and array.dtype == np.uint8]
    for name in names[:1]:
        if rng.random() < 0.1:
            message.arrays[name] = np.frombuffer(rng.choice(TEXTS), np.uint8)
            continue
        with suppress(ValueError, RecursionError):  # it was mutated before
            value = json.loads(message.arrays[name].tobytes())
            _change_value(rng, value)
            message.arrays[name] = np.frombuffer(json.dumps(value).encode(), np.uint8)


def _change_value(rng: random.Random, value: object) -> None:
    while isinstance(value, list) and value:
        place = rng.randrange(len(value))
        if isinstance(value[place], list) and value[place] and rng.random() < 0.7:
            value = value[place]
            continue
        change = rng.randrange(4)
        if change == 0:
            value[place] = rng.choice(EXTREMES)
        elif change == 1:
            del value[place]
        elif change == 2:
            value.insert(rng.randrange(len(value) + 1), value[place])
        elif isinstance(value[place], int):
            value[place] += rng.choice([-1, 1])
        elif isinstance(value[place], str):
            value[place] = value[place][2:] + value[place][:2]
        return


def add_arrays(rng: random.Random, message: Message) -> None:
    for number in range(rng.choice([1, 5, 300])):
        message.arrays[f"shared/more-{number}"] = np.zeros(rng.choice([0, 1, 100]))


def lie_about_an_array(rng: random.Random, message: Message) -> None:
    for name in [rng.choice([HEADER, *message.arrays])]:
        version = rng.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x09"])
        message.raw[name] = described(rng.choice(DESCRIPTIONS), rng.randbytes(rng.choice([0, 8, 360])), version)


def replace_text(rng: random.Random, message: Message) -> None:
    message.raw[HEADER] = npy(np.frombuffer(rng.choice(TEXTS), np.uint8))


def repeat_entry(rng: random.Random, message: Message) -> None:
    message.more.append(rng.choice(message.entries()))


STRUCTURE = (
    drop_field, swap_field, swap_field, swap_setting, swap_setting, swap_setting, fresh_run, drop_array, rename_array,
    reshape_array, retype_array, change_numbers, change_text, change_text, add_arrays, lie_about_an_array,
    replace_text, repeat_entry,
)  # fmt: skip

# --- mutations of the bytes: (random, bytes) -> bytes


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20]) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def damage_directory(rng: random.Random, content: bytes) -> bytes:
    """Fields of the list of entries, or of its end, set to extremes."""
    changed, places = bytearray(content), [len(content) - 22]
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        places.append(place)
        place = content.find(b"PK\x01\x02", place + 4)
    where = rng.choice(places)
    offset = rng.choice([8, 10, 12, 16, 20] if where == places[0] else [6, 8, 10, 16, 20, 24, 28, 30, 32, 42])
    value = rng.choice([0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(32)])
    kept = bytes(changed[where + offset + 4 :])
    return bytes(changed[: max(where + offset, 0)]) + struct.pack("<I", value) + kept


def big_directory(rng: random.Random, content: bytes) -> bytes:
    """Many entries of no bytes, under an end that says so or not."""
    one = b"PK\x01\x02" + bytes(42)
    count = rng.choice([3, 300, 3000, 3000, 200_000])
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count % 65536, count % 65536, len(one) * count, 0, 0)
    far = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1) if rng.random() < 0.3 else b""
    return one * count + far + end


def compressed(rng: random.Random, content: bytes) -> bytes:
    return (
        packed(Message(content).entries(), ZIP_DEFLATED) if rng.random() < 0.5 else bomb(rng.choice([100, 30_000_000]))
    )


@cache
def bomb(size: int) -> bytes:
    return packed([(HEADER, bytes(size))], ZIP_DEFLATED)


def around(rng: random.Random, content: bytes) -> bytes:
    return rng.choice([b"", b"PK", rng.randbytes(50)]) + content + rng.choice([b"", b"\0", rng.randbytes(30)])


def nonsense(rng: random.Random, content: bytes) -> bytes:
    return rng.choice([b"", b"PK", b"PK\x05\x06" + bytes(18), rng.randbytes(rng.randrange(400))])


BYTES = (truncate, flip, flip, damage_directory, damage_directory, big_directory, compressed, around, nonsense)


def mutants(corpus: Sequence[bytes], seed: int, number: int) -> Iterator[tuple[str, bytes]]:
    """`number` mutated messages, each with the names of its mutations."""
    for k in range(number):
        rng = random.Random(f"{seed}/{k}")
        content = rng.choice(corpus)
        if rng.random() < 0.2:
            change = rng.choice(BYTES)
            yield change.__name__, change(rng, content)
            continue
        message, chosen = Message(content), rng.choices(STRUCTURE, k=rng.choice([1, 1, 1, 2, 3]))
        for mutate in chosen:
            mutate(rng, message)
        content = packed(message.entries())
        if rng.random() < 0.03:
            content = flip(rng, content)
        yield "+".join(mutate.__name__ for mutate in chosen), content


def hammer(
    send: Callable[[bytes], bytes],
    messages: Iterable[tuple[str, bytes]],
    outcome: Callable[[bytes], str],
    wrap: Callable[[bytes], bytes] = lambda content: content,
) -> Counter[str]:
    """Send every message (`wrap` seals it, where messages are sealed) and count the outcomes.

    `outcome` names what came back, and raises if it is no answer. Fails if sending raises, takes long, or takes memory.
    """
    found: Counter[str] = Counter()
    waiting = iter(messages)
    while batch := [(kind, content, wrap(content)) for kind, content in itertools.islice(waiting, BATCH)]:
        before = peak_memory(reset=True)
        answers = [_sent(send, *one) for one in batch]
        taken = peak_memory() - before - max(len(content) for _, content, _ in batch)
        assert taken <= MEMORY, f"one of {[kind for kind, _, _ in batch]} took {taken / 2**20:.0f} MB"
        found.update(map(outcome, answers))
    return found


def _sent(send: Callable[[bytes], bytes], kind: str, content: bytes, sealed: bytes) -> bytes:
    began = time.process_time()
    try:
        answer = send(sealed)
    except Exception as error:
        raise AssertionError(f"{kind} raised {type(error).__name__}: {content[:2000]!r}") from error
    assert time.process_time() - began <= SECONDS, f"{kind} took too long: {content[:2000]!r}"
    return answer


def peak_memory(reset: bool = False) -> int:
    """The most bytes that this process has held at once, since the last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
