"""What vocabularies are read from: containers, archives, and the copies that are kept."""

import io
import struct
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vocabularies import loading
from tests.vocabularies.backends import merges_of, spell
from tests.vocabularies.containers import Piece, PieceKind, read_gguf, read_ranks, read_sentencepiece
from tests.vocabularies.fetch import take
from tests.vocabularies.sources import Source, digest_of, located


def test_ranks_are_read(tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    file.write_bytes(b"YQ== 0\nYg== 1\nYWI= 2\n\n")
    assert read_ranks(file) == {b"a": 0, b"b": 1, b"ab": 2}


@given(st.sets(st.binary(min_size=2, max_size=4), max_size=8))
def test_merges_put_every_token_together_from_two_others(longer: set[bytes]) -> None:
    ranks = {bytes([i]): i for i in range(256)} | {token: 256 + i for i, token in enumerate(sorted(longer, key=len))}
    merges = merges_of(ranks)
    assert {left + right for left, right in merges} >= {token for token in longer if len(token) == 2}
    assert all({left, right, left + right} <= set(ranks) for left, right in merges)
    assert [ranks[left + right] for left, right in merges] == sorted(ranks[left + right] for left, right in merges)
    assert len(set(merges)) == len(merges)


def test_bytes_are_spelled_as_byte_level_vocabularies_spell_them() -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert {byte: spell(bytes([byte])) for byte in range(256)} == bytes_to_unicode()


@given(
    st.lists(
        st.builds(Piece, st.text(max_size=200), st.floats(width=32, allow_nan=False), st.sampled_from(PieceKind)),
        max_size=5,
    )
)
def test_sentencepiece_models_are_read(pieces: list[Piece]) -> None:
    model = b"".join(field(1, written(piece)) for piece in pieces) + field(2, b"trainer") + b"\x18\x96\x01"
    with io.BytesIO(model) as file:
        assert read_sentencepiece(Held(file.read())) == pieces  # type: ignore[arg-type]


class Held:
    """A file that is only its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_bytes(self) -> bytes:
        return self.data


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    return bytes([number << 3 | 2]) + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data


def written(piece: Piece) -> bytes:
    return field(1, piece.text.encode()) + b"\x15" + struct.pack("<f", piece.score) + bytes([3 << 3, piece.kind])


def test_gguf_metadata_is_read_without_the_tensors(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    file = tmp_path / "head.gguf"
    file.write_bytes(
        struct.pack("<4sIQQ", b"GGUF", 3, 9, 3)
        + text("name")
        + struct.pack("<I", 8)
        + text("▁é")
        + text("tokens")
        + struct.pack("<IIQ", 9, 8, 2)
        + text("a")
        + text("")
        + text("scores")
        + struct.pack("<IIQ2f", 9, 6, 2, 0.5, -1.0)
        + b"the tensors are cut o"
    )
    assert read_gguf(file) == {"name": "▁é", "tokens": ["a", ""], "scores": (0.5, -1.0)}
    file.write_bytes(b"GGML" + bytes(100))
    with pytest.raises(ValueError, match="not GGUF"):
        read_gguf(file)


FILES = {
    "pkg/data/a.jinja": b"template",
    "pkg/data/deep/b.bin": b"0123456789",
    "pkg/other.py": b"code",
    "pkg/data/../out": b"no",
}
TAKEN = {"a.jinja": b"temp", "deep/b.bin": b"0123"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "pkg-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    path = tmp_path / "pkg-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(f"pkg-1/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def source(folder: Path, digest: str = "") -> Source:
    if not digest:
        folder.mkdir(parents=True)
        for path, data in TAKEN.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(data)
        digest = digest_of(folder, TAKEN)
    return Source("pkg", "pkg==1", digest, ["pkg/data/*"], "pkg/data/", head_bytes=4)


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_wanted_files_are_taken_out_of_an_archive(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    taken = tmp_path / "taken"
    take(source(tmp_path / "expected"), request.getfixturevalue(kind), taken)
    assert {str(p.relative_to(taken)): p.read_bytes() for p in taken.rglob("*") if p.is_file()} == TAKEN


def test_files_with_other_contents_are_refused(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(ValueError, match=r"pkg==1: 2 files with digest [0-9a-f]{64}, expected ffff"):
        take(source(tmp_path, digest="ffff"), wheel, tmp_path / "taken")


def test_file_that_is_missing_says_how_to_fetch_it() -> None:
    with pytest.raises(FileNotFoundError, match=r"`make venv` fetches the files of trl==1\.16\.0"):
        located("trl/none.jinja")


@pytest.mark.slow
def test_vocabulary_built_by_many_at_once_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = loading.built("mistral-v1")
    contents = kept.read_bytes()
    monkeypatch.setattr(loading, "storage", lambda: tmp_path)
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(loading.built("mistral-v1").read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [contents] * 4
    assert [path.name for path in (tmp_path / "built").iterdir()] == [kept.name]


def test_what_other_code_built_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "storage", lambda: tmp_path)
    kept = loading.built("smollm2")
    stale = kept.with_name("smollm2-0123456789ab.json")
    stale.write_bytes(kept.read_bytes())
    loading.prune()
    assert kept.exists()
    assert not stale.exists()
