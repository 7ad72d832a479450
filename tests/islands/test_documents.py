"""The documents of all formats: equal texts give equal tokens, and damage gives one message."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.errors import UserMistake
from islands import token_files
from islands.data import json_lines
from islands.data.damage import EMPTY, Damage, DamageKind
from islands.data.documents import DocumentFile
from islands.data.encoding import encoded, numbered
from islands.data.text_tokens import ByteEncoder, HuggingFaceEncoder, encoder_of, trained
from islands.sources import DataSpec
from tests.given import data_spec
from tests.given import one_corpus as read_corpus

TEXTS = [f"document {number} has {'many ' * (number % 7)}words, ü\n" for number in range(300)]
SAVED = Path(__file__).parents[1] / "saved_dataset"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(token_files.FOLDER, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceEncoder:
    return encoder_of(trained(iter(TEXTS), 400), "tokenizer.json")


def write_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"n": 1, "text": text}) + "\n" for text in texts))


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts}), path, row_group_size=64)


def write_arrow_file(path: Path, texts: list[str]) -> None:
    table = pa.table({"text": texts})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def write_arrow_stream(path: Path, texts: list[str]) -> None:
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


FORMATS = {
    "a.jsonl": write_lines,
    "a.parquet": write_parquet,
    "a.arrow": write_arrow_file,
    "b.arrow": write_arrow_stream,
}


def ids_of(file: DocumentFile, encoder: HuggingFaceEncoder | ByteEncoder) -> list[int]:
    found = encoded(file, encoder, 0, file.extent(), Damage(skip=False))
    return [int(number) for batch in found for number in batch.ids]


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_give_the_same_tokens(
    tmp_path: Path, name: str, tokenizer: HuggingFaceEncoder
) -> None:
    FORMATS[name](tmp_path / name, TEXTS)
    wanted = [
        number
        for text in TEXTS
        for number in [*tokenizer.tokenizer.encode(text).ids, tokenizer.end_token]
    ]
    assert ids_of(DocumentFile(tmp_path / name, "text", False), tokenizer) == wanted
    joined = "".join(f"{text}\0" for text in TEXTS).encode()
    assert bytes(ids_of(DocumentFile(tmp_path / name, "text", False), ByteEncoder())) == joined


@pytest.mark.parametrize("name", FORMATS)
def test_reading_can_begin_again_behind_any_batch(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name, TEXTS)
    file, end = DocumentFile(tmp_path / name, "text", False), Damage(skip=False)
    whole = [*encoded(file, ByteEncoder(), 0, file.extent(), end)]
    for number, batch in enumerate(whole):
        rest = encoded(file, ByteEncoder(), batch.place, file.extent(), end, resumed=True)
        wanted = [int(x) for each in whole[number + 1 :] for x in each.ids]
        assert [int(x) for each in rest for x in each.ids] == wanted


@pytest.mark.parametrize("size", [1, 7, 90, 300, 2**20])
def test_lines_do_not_depend_on_the_pieces_that_are_read(tmp_path: Path, size: int) -> None:
    write_lines(path := tmp_path / "a.jsonl", TEXTS)
    content, damage = path.read_bytes(), Damage(skip=False)
    found = [
        each for some in json_lines.lines(path, 0, len(content), damage, size) for each in some
    ]
    assert [line for _, line in found] == content.splitlines()
    place = found[100][0]
    rest = [each for some in json_lines.lines(path, place, len(content), damage) for each in some]
    assert rest == found[101:]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("ab \nüß€😀"), min_size=1, max_size=60),
    size=st.integers(4, 20),
)
def test_pieces_of_a_text_join_to_the_text_and_cut_no_character(text: str, size: int) -> None:
    content = text.encode()
    with NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        pieces = [*json_lines.text_pieces(Path(file.name), 0, len(content), size)]
    assert b"".join(piece.content for piece in pieces) == content
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for piece in pieces:
        piece.content.decode()


def test_special_tokens_in_a_text_are_plain_text(tokenizer: HuggingFaceEncoder) -> None:
    (ids,) = tokenizer.encode([b"one<|endoftext|>two"])
    assert tokenizer.end_token not in ids
    assert tokenizer.tokenizer.decode([*ids]) == "one<|endoftext|>two"


def test_saved_dataset_is_read_split_by_split(tokenizer: HuggingFaceEncoder) -> None:
    data = data_spec(str(SAVED / "train"), "text", heldout_percent=20, window=4, lease_windows=4)
    corpus = read_corpus(data)
    texts = [f"document {number} of the saved dataset, ü" for number in range(30)]
    found = bytes(corpus.train) + bytes(corpus.heldout)
    assert sorted(found.decode().split("\0")[:-1]) == sorted(texts)
    ids = DocumentFile(SAVED / "test" / "data-00000-of-00001.arrow", "ids", True)
    (batch,) = numbered(ids, 251, 0, ids.extent(), Damage(skip=False))
    assert batch.ids.tolist() == [n for i in range(30, 40) for n in (i % 7, i % 11, 250)]
    with pytest.raises(UserMistake, match=r"saved dataset of several splits: name one: .*train"):
        read_corpus(data_spec(str(SAVED), "text"))


def test_token_ids_of_all_formats_are_equal(tmp_path: Path) -> None:
    rows = [[number, 2 * number, 7] for number in range(100)] + [[]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    pq.write_table(pa.table({"ids": rows}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        file, damage = DocumentFile(tmp_path / name, "ids", True), Damage(skip=False)
        (batch,) = numbered(file, 200, 0, file.extent(), damage)
        assert batch.ids.tolist() == [number for row in rows for number in row]
        assert batch.ends.tolist() == [3 * number for number in range(1, 101)]
        assert damage.counts == {EMPTY: 1}


# --- damage ---------------------------------------------------------------------------------------


def damaged_parquet(path: Path) -> None:
    """Write five row groups, and change bytes within the third."""
    table = pa.table({"text": TEXTS})
    pq.write_table(table, path, row_group_size=60, write_page_checksum=True)
    facts = pq.ParquetFile(path).metadata.row_group(2).column(0)
    content = bytearray(path.read_bytes())
    start = facts.dictionary_page_offset or facts.data_page_offset
    middle = start + facts.total_compressed_size // 2
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)


def spec(path: Path, *, skip: bool = False, column: str | None = "text") -> DataSpec:
    return DataSpec(str(path), column, False, 20, 4, 0, 4, skip_damaged=skip)


def refused(data: DataSpec) -> str:
    with pytest.raises(UserMistake) as caught:
        read_corpus(data)
    return str(caught.value)


def test_damaged_row_group_is_refused_or_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_parquet(tmp_path / "a.parquet")
    message = refused(spec(tmp_path / "a.parquet"))
    assert "a.parquet: row group 2 (rows 120 to 179) is damaged" in message
    assert "data.skip_damaged = true" in message
    corpus = read_corpus(spec(tmp_path / "a.parquet", skip=True))
    kept = [*TEXTS[:120], *TEXTS[180:]]
    found = (bytes(corpus.train) + bytes(corpus.heldout)).decode().split("\0")[:-1]
    assert found == kept
    assert "left out: 1 damaged row groups" in caplog.text


def test_document_that_is_not_utf8_is_refused_or_left_out(
    tmp_path: Path, tokenizer: HuggingFaceEncoder
) -> None:
    rows = [b"good", b"bad \xff byte", b"good too"]
    pq.write_table(pa.table({"text": pa.array(rows, pa.binary())}), tmp_path / "a.parquet")
    file = DocumentFile(tmp_path / "a.parquet", "text", False)
    with pytest.raises(UserMistake, match=r"row 1 is not UTF-8 at byte 4 .* \(0xff\).*iconv"):
        _ = [*encoded(file, tokenizer, 0, 3, Damage(skip=False))]
    damage = Damage(skip=True)
    (batch,) = encoded(file, tokenizer, 0, 3, damage)
    assert len(batch.ends) == 2
    assert damage.counts == {DamageKind.NOT_UTF8.value: 1}
    (tmp_path / "b.txt").write_bytes(b"latin \xe9t\xe9\n")
    text = DocumentFile(tmp_path / "b.txt", None, False)
    with pytest.raises(UserMistake, match=r"b.txt: the document is not UTF-8 at byte 6 \(0xe9\)"):
        _ = [*encoded(text, tokenizer, 0, text.extent(), Damage(skip=False))]


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ('{"text": 3}', DamageKind.NOT_JSON, "has a int in the field, not text"),
        ('{"body": "x"}', DamageKind.NOT_JSON, "has no field 'text'; its fields are body"),
        ("[1]", DamageKind.NOT_JSON, "has no field 'text'; it is no object"),
        ('{"text": "x"', DamageKind.NOT_JSON, "is not JSON"),
        ('{"text": "\\ud800"}', DamageKind.NOT_UTF8, "is not UTF-8: surrogates not allowed"),
    ],
)
def test_damaged_line_is_refused_or_left_out(
    tmp_path: Path, line: str, kind: DamageKind, message: str
) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "one"}}\n{line}\n\n{{"text": "two"}}')
    file = DocumentFile(tmp_path / "a.jsonl", "text", False)
    with pytest.raises(UserMistake) as caught:
        ids_of(file, ByteEncoder())
    assert f"the line that ends at byte {16 + len(line) + 1} {message}" in str(caught.value)
    damage = Damage(skip=True)
    found = [*encoded(file, ByteEncoder(), 0, file.extent(), damage)]
    assert b"".join(bytes(batch.ids) for batch in found) == b"one\0two\0"
    assert damage.counts == {kind.value: 1}


def test_token_id_beyond_64_bits_is_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1, 2]}\n{"ids": [3, 100000000000000000000]}\n')
    file = DocumentFile(tmp_path / "a.jsonl", "ids", True)
    with pytest.raises(UserMistake, match="has a token id of more than 64 bits"):
        _ = [*file.ids(0, file.extent(), Damage(skip=False))]
    damage = Damage(skip=True)
    (batch,) = file.ids(0, file.extent(), damage)
    assert batch.ids.tolist() == [1, 2]
    assert damage.counts == {DamageKind.NOT_JSON.value: 1}


def test_huge_document_is_refused_or_left_out(tmp_path: Path) -> None:
    texts = ["small", "x" * (json_lines.LARGEST_DOCUMENT_BYTES + 1), "small too"]
    write_lines(tmp_path / "a.jsonl", texts)
    write_parquet(tmp_path / "a.parquet", texts)
    for name, where in (("a.jsonl", "the line at byte 26"), ("a.parquet", "row 1")):
        file = DocumentFile(tmp_path / name, "text", False)
        with pytest.raises(UserMistake, match=rf"{name}: {where} .*more than 67,?108,?864"):
            ids_of(file, ByteEncoder())
        damage = Damage(skip=True)
        found = [*encoded(file, ByteEncoder(), 0, file.extent(), damage)]
        assert b"".join(bytes(batch.ids) for batch in found) == b"small\0small too\0"
        assert damage.counts == {DamageKind.TOO_LARGE.value: 1}


def test_empty_documents_are_counted_and_have_no_tokens(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["", "one", "", "two", ""])
    (tmp_path / "b.txt").write_text("")
    for name, wanted, empty in (("a.jsonl", b"one\0two\0", 3), ("b.txt", b"", 1)):
        file, damage = (
            DocumentFile(tmp_path / name, "text" if wanted else None, False),
            Damage(skip=False),
        )
        found = [*encoded(file, ByteEncoder(), 0, file.extent(), damage)]
        assert b"".join(bytes(batch.ids) for batch in found) == wanted
        assert damage.counts == {EMPTY: empty}


def test_damaged_arrow_files_give_one_message(tmp_path: Path) -> None:
    write_arrow_stream(tmp_path / "a.arrow", TEXTS)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[: len(content) // 2])
    assert "record batch at row" in refused(spec(tmp_path / "a.arrow"))
    (tmp_path / "b.arrow").write_text("this is text")
    assert "b.arrow cannot be read as Arrow" in refused(spec(tmp_path / "b.arrow"))
    assert "its columns are text" in refused(spec(tmp_path / "a.arrow", column="body"))


def test_dtype_follows_the_vocabulary(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 70_000]] * 50}), tmp_path / "a.parquet")
    data = DataSpec(str(tmp_path / "a.parquet"), "ids", True, 20, 4, 0, 4)
    assert read_corpus(data, 70_001).train.dtype == np.uint32
    with pytest.raises(UserMistake, match="run from 1 to 70000, the vocabulary from 0 to 69999"):
        read_corpus(data, 70_000)
