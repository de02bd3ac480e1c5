"""The runs under examples/run: each configuration loads, those that need no server run, and Python says the same."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentkit import AgentkitError, ConfigError, ExitReason
from agentkit.journal import JournalReader
from agentkit.runs import RunConfig, execute, load_config

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "examples" / "run"
CONFIGS = {path.stem: path for path in sorted(RUNS.glob("*.yaml"))}
CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules beside a configuration are forgotten again."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(RUNS)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a byte-level tokenizer and a ChatML template, in place of one from the hub."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({text: number for number, text in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(control)
    folder = tmp_path_factory.mktemp("tokenizer")
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)
    made.save_pretrained(folder)
    return str(folder)


def loaded(name: str, tokenizer: str = "") -> RunConfig:
    needs = "renderer: {use: hf" in CONFIGS[name].read_text()
    changes = {"agent.renderer.tokenizer": tokenizer} if needs else {}
    return load_config(CONFIGS[name], environ={"API_KEY": "sk-of-a-test"}, changes=changes)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"hf"}))
def test_each_configuration_loads_and_its_rows_are_sound(name: str, tokenizer: str) -> None:
    config = loaded(name, tokenizer)
    assert config.survey().tasks
    assert config.name.startswith(("cities", "sorting"))
    assert "sk-of-a-test" not in config.to_yaml()


@pytest.mark.skipif(find_spec("torch") is not None, reason="it would load the model")
def test_the_one_for_transformers_lacks_nothing_but_torch() -> None:
    with pytest.raises(AgentkitError) as caught:
        loaded("hf")
    assert str(caught.value).count("\n") <= 1, "one problem"
    assert "torch" in str(caught.value)


async def test_the_offline_run_solves_all(tmp_path: Path) -> None:
    result = await execute(loaded("run"), tmp_path / "run", writer="inline")
    assert result.finished
    assert dict(result.progress.reasons) == {ExitReason.FINISHED: 12}
    assert result.progress.mean_score == 1.0


async def test_rows_that_differ_are_run_as_they_say(tmp_path: Path) -> None:
    config = load_config(CONFIGS["run"], changes=["dataset.path=overrides.jsonl", "pool.group_size=1"])
    await execute(config, tmp_path / "run", writer="inline")
    with JournalReader.open(tmp_path / "run") as reader:
        ends = {t.task_id: (t.exit_reason, t.score) for t in reader.trajectories()}
    assert ends == {
        "lima": (ExitReason.FINISHED, 1.0),
        "oslo": (ExitReason.TURN_LIMIT, 0.0),
        "quito": (ExitReason.FINISHED, 1.0),
    }


@pytest.mark.parametrize(("python", "yaml"), [("run", "run"), ("vllm_server", "vllm")])
def test_python_and_yaml_say_the_same(python: str, yaml: str, tokenizer: str) -> None:
    sys.path.insert(0, str(RUNS))
    module = imported(python)
    ours = module.make_config(tokenizer) if python == "vllm_server" else module.config
    theirs = loaded(yaml, tokenizer)
    for read in (
        lambda config: (config.name, config.pool, config.agent.budget, config.agent.params, config.agent.loop),
        lambda config: list(config.tasks()),
        lambda config: [tool.spec for tool in config.agent.make_tools()],
        lambda config: repr(config.agent.model),
        lambda config: (type(config.agent.parser), config.agent.reward.__qualname__),
        lambda config: list(config.agent.renderer.prompt([*next(iter(config.tasks())).messages], ())),
    ):
        if "ScriptedModel" not in repr(ours.agent.model) or "object at" not in repr(read(ours)):
            assert read(ours) == read(theirs)


def imported(name: str) -> Any:
    spec = spec_from_file_location(f"example_run_{name}", RUNS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def answer(request: web.Request) -> web.StreamResponse:
    """As a chat server that calls the tool once, and then says what the tool said."""
    if request.path.endswith("/models"):
        return web.json_response({"data": [{"id": "some-model"}]})
    if request.headers.get("Authorization") != "Bearer sk-of-a-test":
        return web.json_response({"error": {"message": "no key"}}, status=401)
    messages = (await request.json())["messages"]
    if messages[-1]["role"] == "tool":
        delta: dict[str, Any] = {"content": messages[-1]["content"]}
    else:
        call = {"name": "population", "arguments": json.dumps({"city": "Lima"})}
        delta = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": call}]}
    finish = "stop" if "content" in delta else "tool_calls"
    events = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return web.Response(text=body, content_type="text/event-stream")


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_the_chat_api_example_speaks_to_a_server(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    monkeypatch.setenv("MODEL_URL", f"http://{host}:{port}/v1")
    monkeypatch.setenv("API_KEY", "sk-of-a-test")
    sys.path.insert(0, str(RUNS))
    try:
        await imported("chat_api").main()
    finally:
        await runner.cleanup()
    assert capsys.readouterr().out.splitlines() == ["finished 1.0 2 turns"] * 4 + ["40 tokens in 8 answers"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-W", "error", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_the_python_twin_runs_as_a_program(tmp_path: Path) -> None:
    done = command(str(RUNS / "run.py"), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "finished {<ExitReason.FINISHED: 'finished'>: 12} 1.0\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rollouts"), [("run", 12), ("sandboxed", 4), ("prepared", 4)])
def test_the_command_line_of_a_configuration_works(name: str, rollouts: int, tmp_path: Path) -> None:
    done = command("-m", "agentkit", "run", f"examples/run/{name}.yaml", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    told = command("-m", "agentkit", "report", str(tmp_path / "run"), "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["solved"] == rollouts
    with JournalReader.open(tmp_path / "run") as reader:
        assert [summary.score for summary in reader.summaries()] == [1.0] * rollouts


def test_a_key_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="API_KEY"):
        load_config(CONFIGS["chat"], environ={})
