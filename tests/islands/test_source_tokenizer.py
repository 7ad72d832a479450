"""The tokenizer of directories, buckets and mixtures is found, or its absence is explained."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.errors import UserMistake
from islands.data.buckets import connection, path_of
from islands.data.text_tokens import encoder_of, library
from islands.data.token_writer import written
from islands.data.tokenize_plan import TokenizeOptions, plan_of
from islands.source_tokenizer import other_source
from islands.sources import DataSpec, MixtureSource
from islands.text_model import SourceCodec, codec_of, reads_bytes
from tests.cluster import gcs, s3
from tests.given import data_spec, first_of, sums

SERVERS = {"s3": s3.served, "gs": gcs.served}
VOCABULARY = 300
TEXT = "3 times 1 is für 3"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts and token directories: two with one tokenizer, one with another, bytes, ids."""
    there = tmp_path_factory.mktemp("sources")
    text = str(sums(there / "text"))
    trained = TokenizeOptions(train_vocabulary=VOCABULARY)
    tokenized(data_spec(text), there / "one", trained)
    tokenized(replace(data_spec(text), tokenizer=str(there / "one")), there / "same")
    tokenized(data_spec(text), there / "other", TokenizeOptions(train_vocabulary=270))
    tokenized(data_spec(text), there / "bytes")
    pq.write_table(pa.table({"ids": [[1, 299], [7] * 400]}), there / "ids.parquet")
    ids = data_spec(str(there / "ids.parquet"), "ids", tokens=True)
    tokenized(ids, there / "ids", TokenizeOptions(vocabulary=VOCABULARY))
    return there


def tokenized(data: DataSpec, out: Path, options: TokenizeOptions | None = None) -> None:
    written(plan_of(data, options or TokenizeOptions(), out), out, lambda _: None)


def mixture(*sources: Path) -> DataSpec:
    parts = tuple(MixtureSource(str(source), 1.0) for source in sources)
    return replace(data_spec(), mixture=parts)


def ids_of(there: Path) -> list[int]:
    """Return the ids of `TEXT` in the tokenizer of the directory `one`."""
    encoder = encoder_of((there / "one" / "tokenizer.json").read_bytes(), "one")
    found = encoder.encode([TEXT.encode()])[0].tolist()
    assert len(found) < len(TEXT), "a token has several bytes"
    return found


def refusal(data: DataSpec, vocabulary: int = VOCABULARY) -> str:
    """Return why text cannot be encoded."""
    codec = SourceCodec(data, vocabulary)
    assert not reads_bytes(codec)
    with pytest.raises(UserMistake) as caught:
        codec.encode(TEXT)
    with pytest.raises(UserMistake):
        codec.decode([1])
    return str(caught.value)


@pytest.mark.parametrize("server", first_of(SERVERS))
def test_token_directory_in_a_bucket_has_its_tokenizer(server: str, there: Path) -> None:
    served: AbstractContextManager[str] = SERVERS[server]()
    with served as uri:
        files = connection(uri)
        for path in (there / "one").iterdir():
            with files.open_output_stream(f"{path_of(uri)}/one/{path.name}") as stream:
                stream.write(path.read_bytes())
        place, _, options = uri.partition("?")
        data = data_spec(f"{place}/one?{options}")
        codec = SourceCodec(data, VOCABULARY)
        assert codec.encode(TEXT) == ids_of(there)
        assert codec.decode(codec.encode(TEXT)) == TEXT
        with pytest.raises(UserMistake, match=r"would be read as bytes.* is in a bucket"):
            other_source(data, str(there / "text"), VOCABULARY)


def test_mixture_of_directories_has_their_common_tokenizer(there: Path) -> None:
    codec = SourceCodec(mixture(there / "one", there / "same"), VOCABULARY)
    assert codec.encode(TEXT) == ids_of(there)
    assert codec.decode(codec.encode(TEXT)) == TEXT
    assert not reads_bytes(codec)


def test_mixture_with_several_tokenizers_is_refused_with_each_of_them(there: Path) -> None:
    for second, described in (("other", "a tokenizer with SHA-256 "), ("text", "bytes")):
        why = refusal(mixture(there / "one", there / second))
        assert "data.mixture: its sources have different tokenizers" in why
        assert f"{str(there / second)!r} has {described}" in why
        assert "archipelago data tokenize --tokenizer FILE" in why


def test_ids_without_a_tokenizer_are_refused(there: Path) -> None:
    column = data_spec(str(there / "ids.parquet"), "ids", tokens=True)
    for data in (column, data_spec(str(there / "ids")), mixture(there / "one", there / "ids")):
        assert "holds token ids, and no tokenizer is known for them" in refusal(data)


def test_text_and_directories_of_bytes_are_bytes(there: Path) -> None:
    for data in (
        data_spec(),
        data_spec(str(there / "text")),
        data_spec(str(there / "bytes")),
        mixture(there / "text", there / "bytes"),
    ):
        assert reads_bytes(codec_of(data, VOCABULARY))


def test_text_beside_a_file_of_that_name_is_bytes(there: Path, tmp_path: Path) -> None:
    sums(tmp_path / "text")
    content = (there / "one" / "tokenizer.json").read_bytes()
    (tmp_path / "text" / "tokenizer.json").write_bytes(content)
    assert reads_bytes(codec_of(data_spec(str(tmp_path / "text")), VOCABULARY))


def test_source_that_is_gone_is_no_proof_of_bytes(tmp_path: Path) -> None:
    gone = data_spec(str(tmp_path / "gone"))
    assert "is not on this machine" in refusal(gone)
    assert reads_bytes(codec_of(gone, 256))


def test_end_token_of_the_index_is_used(there: Path, tmp_path: Path) -> None:
    """A tokenizer without any usual end token was applied with `--end-token`."""
    content = json.loads((there / "one" / "tokenizer.json").read_text())
    kept = json.dumps(content, ensure_ascii=False).replace("<|endoftext|>", "<the-end>")
    (tmp_path / "own.json").write_text(kept)
    data = replace(
        data_spec(str(there / "text")),
        tokenizer=str(tmp_path / "own.json"),
        end_token="<the-end>",
    )
    tokenized(data, tmp_path / "own")
    codec = codec_of(data_spec(str(tmp_path / "own")), VOCABULARY)
    assert codec.encode(TEXT) == ids_of(there)


def test_replaced_tokenizer_of_a_directory_is_refused(there: Path, tmp_path: Path) -> None:
    tokenized(
        replace(data_spec(str(there / "text")), tokenizer=str(there / "one")), tmp_path / "own"
    )
    content = (there / "other" / "tokenizer.json").read_bytes()
    (tmp_path / "own" / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserMistake, match="is not the tokenizer that made the tokens"):
        codec_of(data_spec(str(tmp_path / "own")), VOCABULARY)


# --- another source for the same model ------------------------------------------------------------


def test_other_text_is_read_with_the_tokenizer_of_the_model(there: Path) -> None:
    own = str(there / "one" / "tokenizer.json")
    for data in (data_spec(str(there / "one")), mixture(there / "one", there / "same")):
        found = other_source(data, str(there / "text"), VOCABULARY)
        assert (found.source, found.mixture) == (str(there / "text"), ())
        assert (found.tokenizer, found.end_token) == (own, 0)
    bytes_model = other_source(mixture(there / "text", there / "bytes"), str(there / "text"), 256)
    assert (bytes_model.mixture, bytes_model.tokenizer) == ((), None)


def test_column_of_a_mixture_is_kept_for_files_and_left_out_for_directories(there: Path) -> None:
    parts = tuple(MixtureSource(f"{there}/{name}.jsonl", 1.0, "text") for name in "ab")
    data = replace(data_spec(), mixture=parts)
    assert other_source(data, "c.jsonl", 256).column == "text"
    assert other_source(data, str(there / "bytes"), 256).column is None


def test_directory_with_another_tokenizer_than_the_model_is_refused(there: Path) -> None:
    one = data_spec(str(there / "one"))
    assert other_source(one, str(there / "same"), VOCABULARY).source == str(there / "same")
    for name, described in (("other", "a tokenizer with SHA-256"), ("bytes", "bytes")):
        with pytest.raises(UserMistake) as caught:
            other_source(one, str(there / name), VOCABULARY)
        assert f"{str(there / name)!r} has {described}" in str(caught.value)
        assert f"--tokenizer {there / 'one' / 'tokenizer.json'}" in str(caught.value)
    with pytest.raises(UserMistake, match="and the model was trained with bytes"):
        other_source(data_spec(str(there / "text")), str(there / "one"), VOCABULARY)


def test_text_for_a_model_of_ids_is_refused(there: Path) -> None:
    ids = data_spec(str(there / "ids"))
    with pytest.raises(UserMistake, match="no tokenizer is known for them"):
        other_source(ids, str(there / "text"), VOCABULARY)
    column = data_spec(str(there / "ids.parquet"), "ids", tokens=True)
    assert other_source(column, "more.parquet", VOCABULARY).tokens


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    with pytest.raises(UserMistake, match=r"on every node, .* constraints\.txt '\.\[data\]'"):
        library()
