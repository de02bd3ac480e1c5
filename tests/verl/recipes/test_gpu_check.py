"""The figures that a run on a GPU is described by, out of a log as verl writes it."""

import math
from pathlib import Path

import numpy as np
import pytest
from recipes.gpu_check.figures import FIGURES, machine, main, steps_of, table


def logged(step: int, **metrics: float) -> str:
    from verl.utils.logger.aggregate_logger import concat_dict_to_str

    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return f"\x1b[36m(TaskRunnerV1 pid=12)\x1b[0m {concat_dict_to_str(named, step)}\n"


def test_steps_are_read_as_verl_prints_them():
    log = (
        "noise\n" + logged(1, timing_s__step=np.float64(2.5), perf__throughput=1e-05) + logged(2, agent__turns=math.nan)
    )
    first, second = steps_of(log)
    assert first == {"timing_s/step": 2.5, "perf/throughput": 1e-05}
    assert math.isnan(second["agent/turns"])


def test_the_first_steps_are_left_out_of_the_means():
    steps = steps_of(
        "".join(logged(step, timing_s__step=seconds, agent__x=step) for step, seconds in enumerate((90, 50, 4, 6)))
    )
    lines = table(steps).splitlines()
    assert "| seconds a step (2) | 5 | 4 | 6 |" in lines
    assert "| agent/x (2) | 2.5 | 2 | 3 |" in lines
    assert "| score (0) | not logged | | |" in lines


def test_the_command_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    log = tmp_path / "log"
    monkeypatch.setattr("sys.argv", ["figures", str(log)])
    log.write_text(logged(1, a=1.0))
    with pytest.raises(SystemExit, match="more than 2 steps in the log, found 1"):
        main()
    log.write_text("".join(logged(step, timing_s__step=step) for step in range(5)))
    main()
    assert "5 steps, the first 2 left out" in capsys.readouterr().out
    assert "verl 0.9.1" in machine()


def test_verl_logs_each_figure_under_this_name():
    """Read off verl's sources: a figure that it renamed would silently be missing."""
    import verl

    root = Path(verl.__file__).parent / "trainer"
    said = "\n".join(path.read_text() for path in (*root.rglob("*.py"), *root.parent.glob("utils/debug/*.py")))
    for name in FIGURES.values():
        prefix, _, rest = name.partition("/")
        assert name in said or (prefix == "timing_s" and f'"{rest}"' in said), name
