"""Train a small policy with verl, on CPUs: `make train-demo`, or `python examples/train/train.py --help`.

Needs `pip install -e '.[hf,parquet,verl,yaml]'` and matplotlib. A seed takes about six minutes on two cores.
"""

import argparse
import sys
import time
from pathlib import Path

import anyio
from agentkit_verl.parquet import write_parquet
from figure import Point, draw, read_points, summary, write_points
from policy import warm_up
from sums import make_tasks
from verl_run import Step, train


def main() -> int:
    """One policy for each seed, trained with its rewards, and again with shuffled ones where asked to."""
    asked = parse()
    out = asked.out.resolve()
    points: list[Point] = []
    for seed in range(asked.seed, asked.seed + asked.seeds):
        folder = out / f"seed-{seed}"
        policy = folder / "policy"
        begun = anyio.run(warmed_up, policy, seed)
        tasks = folder / "tasks.parquet"
        write_parquet(make_tasks(asked.steps * asked.prompts, seed=seed), tasks, agent_name="sums")
        for is_control in (False, True)[: 1 + asked.control]:
            name = "shuffled" if is_control else "grpo"
            say(f"{name}, seed {seed}: verl starts, which takes half a minute")
            began = time.monotonic()

            def told(step: Step) -> None:
                say(f"step {step.number:3} of {asked.steps}: {step.success:6.1%} in {step.seconds:4.1f} s")

            steps = train(
                policy,
                tasks,
                folder / name,
                steps=asked.steps,
                prompts=asked.prompts,
                rollouts=asked.rollouts,
                seed=seed,
                control=is_control,
                told=told,
            )
            took = begun + time.monotonic() - began
            points += [Point(name, seed, step.number, step.success, step.seconds, took) for step in steps]
            write_points(points, out / "success.csv")
            draw(points, out / "success.png")
    say(f"\n{summary(points)}\n{out / 'success.csv'}\n{out / 'success.png'}")
    return 0


async def warmed_up(folder: Path, seed: int) -> float:
    """Seconds that it took."""

    def told(step: int, success: float) -> None:
        if step % 10 == 0:
            say(f"warm-up step {step:3}: {success:6.1%}")

    found = await warm_up(folder, seed=seed, told=told)
    say(f"warm-up, seed {seed}: {found.success:.0%} after {found.steps} steps and {found.seconds:.0f} s")
    return found.seconds


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/train-demo"), help="where all of it goes (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="of the optimizer (%(default)s)")
    parser.add_argument("--prompts", type=int, default=16, help="tasks in a step (%(default)s)")
    parser.add_argument("--rollouts", type=int, default=8, help="of each task (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, demonstrations and tasks (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on (%(default)s)")
    parser.add_argument("--control", action="store_true", help="run each seed with shuffled rewards as well")
    parser.add_argument("--figure", type=Path, metavar="CSV", help="only draw this file again, and sum it up")
    asked = parser.parse_args()
    if asked.figure:
        points = read_points(asked.figure)
        draw(points, asked.figure.with_suffix(".png"))
        say(summary(points))
        sys.exit(0)
    return asked


def say(text: str) -> None:
    """Print, at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
