"""The folder of a run: made whole or not at all, never a second time, and read back as it was written."""

import json
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import ConfigError
from agentkit.runs import RunFolder, RunInfo, Sitting, SittingEnd
from agentkit.runs.info import decode_info, encode_info

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INFO = RunInfo(name="counting", created=WHEN, group_size=4, tasks=25)

times = st.datetimes(timezones=st.just(UTC)).map(lambda when: when.replace(microsecond=0))
sittings = st.builds(Sitting, times, st.none() | times, st.none() | st.sampled_from(SittingEnd), st.text(max_size=5))
infos = st.builds(
    RunInfo,
    name=st.text(),
    created=times,
    group_size=st.integers(1, 99),
    tasks=st.none() | st.integers(0),
    dataset_sha256=st.none() | st.text(),
    base=st.none() | st.text(),
    changes=st.lists(st.text(), max_size=3).map(tuple),
    sittings=st.lists(sittings, max_size=3).map(tuple),
)


@given(infos)
def test_what_is_written_is_read_back(info: RunInfo) -> None:
    assert decode_info(encode_info(info), where="run.json") == info


def test_a_run_expects_every_rollout_of_every_task() -> None:
    assert INFO.expected == 100
    assert RunInfo(name="x", created=WHEN, group_size=4).expected is None


def test_a_folder_holds_all_that_is_known_before_the_first_rollout(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs" / "a", INFO, config="model: {api_key: '${KEY}'}\n")
    assert folder.info() == INFO
    assert folder.config() == "model: {api_key: '${KEY}'}\n"
    assert folder.logs_path.is_dir()
    assert [each.name for each in folder.path.parent.iterdir()] == ["a"], "nothing half made is left beside it"
    assert RunFolder.create(tmp_path / "b", INFO).config() is None


def test_a_run_is_never_made_over_another(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", INFO)
    with pytest.raises(ConfigError, match=r"is a run already: go on with it by `agentkit resume .*a`"):
        RunFolder.create(folder.path, RunInfo(name="other", created=WHEN))
    assert folder.info() == INFO


def test_a_folder_with_files_or_a_file_is_refused_and_an_empty_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="new or an empty folder, found files"):
        RunFolder.create(tmp_path / "full", INFO)
    for name in ("file", "link", "file/below"):
        with pytest.raises(ConfigError, match=r"new or an empty folder, found something else|cannot make"):
            RunFolder.create(tmp_path / name, INFO)
    assert RunFolder.create(tmp_path / "empty", INFO).info() == INFO
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file", "full", "link"]


def test_names_are_numbered_and_hostile_ones_stay_below_the_parent(tmp_path: Path) -> None:
    made = [RunFolder.create_next(tmp_path / "runs", INFO).path.name for _ in range(3)]
    assert made == ["counting-1", "counting-2", "counting-3"]
    for name in (
        "../../etc",
        "/etc/passwd",
        "",
        "...",
        ".hidden",
        "a\nb\x1b[2J",
        "x" * 1000,
        "\u4e2d" * 1000,
        "\U0001d49c" * 90,
    ):
        path = RunFolder.create_next(tmp_path / "runs", RunInfo(name=name, created=WHEN)).path
        assert path.parent == tmp_path / "runs"
        assert not path.name.startswith(".")
        assert path.name.isprintable()


def test_many_at_once_get_a_folder_each(tmp_path: Path) -> None:
    made: list[str] = []
    gate = Barrier(8)

    def make(number: int) -> None:
        gate.wait()
        folder = RunFolder.create_next(tmp_path, RunInfo(name="run", created=WHEN, tasks=number))
        made.append(folder.path.name)
        assert folder.info().tasks == number

    threads = [Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [f"run-{number}" for number in range(1, 9)]
    assert len(list(tmp_path.iterdir())) == 8, "nothing of those who came second is left"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "a", INFO, config="\ud800")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    before = (tmp_path / "a").stat().st_ino  # a mounted volume, or where somebody stands
    folder = RunFolder.create(tmp_path / "a", INFO, config="model: x\n")
    assert folder.path.stat().st_ino == before
    assert (folder.info(), folder.config()) == (INFO, "model: x\n")
    assert sorted(each.name for each in folder.path.iterdir()) == ["config.yaml", "logs", "run.json"]
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "b", INFO, config="\ud800")
    assert list((tmp_path / "b").iterdir()) == []


def test_of_many_who_fill_one_empty_folder_one_has_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    had: list[int] = []
    gate = Barrier(8)

    def make(number: int) -> None:
        info = RunInfo(name="run", created=WHEN, tasks=number)
        gate.wait()
        try:
            RunFolder.create(tmp_path / "a", info, config=str(number))
        except ConfigError:
            return
        had.append(number)

    threads = [Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (number,) = had
    folder = RunFolder(tmp_path / "a")
    assert (folder.info().tasks, folder.config()) == (number, str(number))


def test_sittings_are_noted_from_start_to_end(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", INFO)
    folder.write_info(folder.info().begin_sitting(version="1.2"))
    (sitting,) = folder.info().sittings
    assert (sitting.ended, sitting.why, sitting.agentkit) == (None, None, "1.2"), "killed, if nobody ends it"
    folder.write_info(folder.info().end_sitting(SittingEnd.DRAINED).begin_sitting(version="1.3"))
    first, second = folder.info().sittings
    assert first.why is SittingEnd.DRAINED
    assert first.ended is not None
    assert second.why is None
    assert {each.name for each in folder.path.iterdir()} == {"run.json", "logs"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "damaged"),
        ("[]", "no format number"),
        ('{"format": 2, "name": "x"}', "newer agentkit"),
        ('{"format": 1, "name": "x"}', "created"),
        ('{"format": 1, "name": "x", "created": "yesterday"}', "created"),
        ('{"format": 1, "name": "x", "created": "2026-01-01T00:00:00+00:00", "tasks": "three"}', "tasks"),
        ('{"format": 1, "name": "x", "created": "2026-01-01T00:00:00+00:00", "task": 3}', "task"),
    ],
)
def test_a_damaged_record_is_one_error_that_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    folder = RunFolder.create(tmp_path / "a", INFO)
    (folder.path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        folder.info()
    assert str(folder.path / "run.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run"):
        RunFolder(tmp_path).info()
    assert not RunFolder(tmp_path).exists


def test_the_record_is_ascii_so_that_any_tool_reads_it(tmp_path: Path) -> None:
    text = encode_info(RunInfo(name="zähl\x1b[2J\ud800", created=WHEN))
    assert text.isascii()
    assert json.loads(text)["name"] == "zähl\x1b[2J\ud800"
