"""Values are decompressed as the formats specify; any other data are reported or left alone."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import OptionError, SluiceError
from sluice.functions import _decompress, decompress, decompression
from sluice.functions.columns import BadValueError
from sluice.functions.decompression import CODECS, decompressed

TEXT = b"hello, hello, hello"


def arrow(data: bytes, codec: str) -> bytes:
    """By Arrow's stream of a codec, as frames."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def raw_snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, "snappy", asbytes=True))


def chunk(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(3, "little") + content


def framed_snappy(data: bytes, *, stored: bool = False) -> bytes:
    """With a checksum that nobody compares."""
    start = chunk(0xFF, b"sNaPpY")
    return start + (chunk(1, b"crc " + data) if stored else chunk(0, b"crc " + raw_snappy(data)))


COMPRESS: dict[str, Any] = {
    "gzip": zipped,
    "zlib": zlib.compress,
    "zstd": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
    "lz4": lambda data: arrow(data, "lz4"),
    "snappy": framed_snappy,
    "brotli": lambda data: arrow(data, "brotli"),
}


@pytest.mark.parametrize("codec", COMPRESS)
@given(data=st.binary(max_size=3000))
def test_what_is_compressed_comes_back(codec: str, data: bytes) -> None:
    """By name, and by magic bytes where the format has them."""
    packed = COMPRESS[codec](data)
    assert decompressed(packed, codec) == data
    assert decompressed(packed) == (packed if codec == "brotli" else data)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        # RFC 1952: a name, a comment and extra data in the header; members one after the other; padding.
        (
            "gzip",
            bytes.fromhex("1f8b08") + b"\x1c" + bytes(4) + b"\x00\x03\x02\x00xyname\0note\0" + b"%body%",
        ),
        ("gzip", zipped(TEXT[:7]) + zipped(b"") + zipped(TEXT[7:])),
        ("gzip", zipped(TEXT) + bytes(512)),
        # RFC 1950: each level has its own second byte.
        *(("zlib", zlib.compress(TEXT, level)) for level in (0, 1, 5, 6, 9)),
        # RFC 8878 and the frames of LZ4: frames one after the other, and streams without a size.
        ("zstd", arrow(TEXT, "zstd")),
        ("zstd", COMPRESS["zstd"](TEXT[:7]) + arrow(TEXT[7:], "zstd")),
        ("lz4", arrow(TEXT[:7], "lz4") + arrow(TEXT[7:], "lz4")),
        # framing_format.txt: chunks that are stored, padding, skippable ones, and a second identifier.
        ("snappy", framed_snappy(TEXT, stored=True)),
        (
            "snappy",
            framed_snappy(TEXT[:7]) + chunk(0xFE, bytes(9)) + chunk(0x80, b"skip") + framed_snappy(TEXT[7:]),
        ),
    ],
)
def test_forms_of_the_formats(codec: str, packed: bytes) -> None:
    """Cases of the specifications, by name and by magic bytes."""
    if packed.endswith(b"%body%"):  # the raw deflate stream, and what RFC 1952 puts behind it
        deflated = zlib.compress(TEXT)[2:-4]
        end = zlib.crc32(TEXT).to_bytes(4, "little") + len(TEXT).to_bytes(4, "little")
        packed = packed.removesuffix(b"%body%") + deflated + end
    assert decompressed(packed, codec) == TEXT
    assert decompressed(packed) == TEXT


def test_raw_snappy_and_brotli_have_to_be_named() -> None:
    """They have no magic bytes."""
    assert decompressed(raw_snappy(TEXT), "snappy") == TEXT
    assert decompressed(raw_snappy(b""), "snappy") == b""
    assert decompressed(raw_snappy(TEXT)) == raw_snappy(TEXT)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"x",
        b"x^2 + 1",
        b"x\x9cno",
        b"\x1f\x8b",
        b"\x28\xb5\x2f",
        b"\xff\x06\x00\x00sNaPp",
        b"PK\x03\x04",
    ],
)
def test_what_has_no_magic_comes_unchanged(data: bytes) -> None:
    """Also what only begins like zlib, whose two bytes text may have as well."""
    assert decompressed(data) == data


MAGIC = (b"", b"\x1f\x8b\x08", b"\x78\x9c", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", chunk(255, b"sNaPpY"))


@given(st.binary(max_size=100))
def test_auto_changes_nothing_else(data: bytes) -> None:
    """Random bytes come unchanged, unless they begin with magic bytes."""
    if not data.startswith(MAGIC[1:]):
        assert decompressed(data) == data


@pytest.mark.parametrize("codec", COMPRESS)
def test_damage_is_found(codec: str) -> None:
    """Truncated anywhere, and garbage behind the end, in front of it, or alone."""
    packed = COMPRESS[codec](random.Random(1).randbytes(300))
    damaged = [packed[:length] for length in range(len(packed)) if not (codec == "snappy" and length == 10)]
    for data in [*damaged, packed + b"\x01\x02", b"\x07" + packed, b"garbage, and no more"]:
        with pytest.raises(BadValueError, match=codec):
            decompressed(data, codec)


@given(start=st.sampled_from(MAGIC), data=st.binary(max_size=200), codec=st.sampled_from(CODECS))
def test_garbage_raises_nothing_else(start: bytes, data: bytes, codec: str) -> None:
    """Only the error that `errors` is about; with the magic bytes in front as well."""
    with suppress(BadValueError):
        decompressed(start + data, codec)


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_bomb_is_bad_and_takes_little_memory(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decompresses to more than the limit is given up there."""
    monkeypatch.setattr(decompression, "MAX_BYTES", 2**20)
    fits, bomb = COMPRESS[codec](bytes(2**20)), COMPRESS[codec](bytes(2**26))
    assert decompressed(fits, codec) == bytes(2**20)
    tracemalloc.start()
    try:
        with pytest.raises(BadValueError, match=rf"{codec} is larger than 1048576 bytes"):
            decompressed(bomb, codec)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_members_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small members of gzip are one value; they are read in one go."""
    monkeypatch.setattr(decompression, "MAX_BYTES", 1000)
    member = zipped(b"ab")
    assert decompressed(member * 500) == b"ab" * 500
    with pytest.raises(BadValueError, match="larger than 1000"):
        decompressed(member * 501)


def test_a_chunk_of_snappy_that_may_not_be_skipped_is_damage() -> None:
    """framing_format.txt: types 2 to 127 are reserved, and a decoder must stop there."""
    with pytest.raises(BadValueError, match="chunks of type 127 are reserved"):
        decompressed(framed_snappy(TEXT) + chunk(127, b""))


def test_raw_snappy_is_not_believed() -> None:
    """What it says of its size, in front, may be any number."""
    for size, message in ((2**35 - 1, "larger than"), (2**30, "damaged")):
        front = bytes((size >> 7 * n) & 0x7F | (0x80 if n < 4 else 0) for n in range(5))
        with pytest.raises(BadValueError, match=message):
            decompressed(front + bytes(20), "snappy")


def test_a_column() -> None:
    """Nulls stay; slices, chunks and both sizes of Arrow's binary are read alike."""
    packed = [None, zipped(b"a"), b"", b"plain", None, zlib.compress(b"b")]
    made = [None, b"a", b"", b"plain", None, b"b"]
    for kind in (pa.binary(), pa.large_binary()):
        array = pa.array([b"before", *packed, b"after"], kind).slice(1, len(packed))
        assert _decompress.of_arrays(array).to_pylist() == made
        assert _decompress.of_arrays(pa.chunked_array([array, array])).to_pylist() == made * 2
    assert _decompress.of_arrays(pa.array([], pa.binary())).to_pylist() == []
    assert _decompress.of_arrays(pa.nulls(2)).to_pylist() == [None, None]


def test_errors() -> None:
    """Null only for bad values, and only where it is asked for. The codec may be a column in SQL."""
    values = pa.array([zipped(b"a"), b"bad", None])
    assert _decompress.of_arrays(values, codec="gzip", errors="null").to_pylist() == [b"a", None, None]
    by_row = pa.array(["gzip", "auto", "zstd"])
    assert _decompress.of_arrays(values, by_row).to_pylist() == [b"a", b"bad", None]
    with pytest.raises(SluiceError, match=r"^decompress: a value is not gzip, .*; with errors 'null'"):
        _decompress.of_arrays(values, pa.array(["gzip"] * 3), errors=pa.array(["fail"] * 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"codec": "gz"},
            "decompress: codec is 'gz': allowed are auto, gzip, zlib, zstd, lz4, snappy, brotli",
        ),
        ({"codec": None}, "decompress: codec is None: allowed are auto, "),
        ({"errors": "ignore"}, "decompress: errors is 'ignore': allowed are fail, null"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], message: str) -> None:
    """Without a session: before anything runs."""
    with pytest.raises(OptionError) as failure:
        decompress("data", **settings)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        ([pa.array(["text"])], {}, r"the column is string: allowed is binary \(unbase64"),
        ([pa.array([1])], {}, "the column is int64"),
        ([pa.array([b"x"]), pa.array(["gz"])], {}, "codec is 'gz'"),
        ([pa.array([b"x"]), pa.array([None], pa.string())], {}, "codec is None"),
        ([], {}, "sluice_decompress takes the arguments col, codec, errors"),
        ([pa.array([b"x"])] * 4, {}, "takes the arguments"),
        ([pa.array([b"x"])], {"level": pa.array([9])}, "takes the arguments"),
    ],
)
def test_wrong_calls_from_sql(columns: list[Any], named: dict[str, Any], message: str) -> None:
    """Spark knows neither the number nor the types of the arguments."""
    with pytest.raises(OptionError, match=message):
        _decompress.of_arrays(*columns, **named)


def test_results_too_large_for_arrow_say_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow makes chunks of more than 2 GiB, which Spark does not take."""
    monkeypatch.setattr(pa, "array", lambda *_, **__: pa.chunked_array([[b"a"], [b"b"]]))
    with pytest.raises(SluiceError, match=r"larger than 2 GiB: lower .*maxRecordsPerBatch"):
        _decompress.of_arrays(pa.nulls(2))
