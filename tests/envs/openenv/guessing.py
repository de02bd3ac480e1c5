"""A game on an OpenEnv server: guess a number that the seed fixes. Arguments: room for sessions, and a port or 0."""

import random
import socket
import sys
import time

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str


class Hint(Observation):
    echo: str = ""
    tries: int = 0


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._tries = 0
        self._number = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, most: int = 9, **more: object) -> Hint:
        if most < 1:
            raise ValueError("most must be at least 1")
        self._number = random.Random(seed).randint(0, most)
        self._tries = 0
        return Hint(echo=f"Guess from 0 to {most}.\x1b[2J", reward=0.0)

    def step(self, action: Guess, timeout_s: float | None = None, **more: object) -> Hint:
        if action.message == "slow":
            time.sleep(2)
        self._tries += 1
        guess = int(action.message) if action.message != "slow" else -1
        found = guess == self._number
        word = "found" if found else "higher" if guess < self._number else "lower"
        return Hint(echo=word, tries=self._tries, done=found, reward=1.0 if found else -0.25)

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=self._tries)


def main() -> None:
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=int(sys.argv[1]))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[2])))
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    main()
