"""From a row as verl hands it to an agent loop to a task: the same task that `agentkit run` makes of its file.

A row that `agentkit_verl.parquet` wrote carries its task as JSON, so that nothing of it is lost in columns; of another
row the task is what its columns say. Columns come as numpy values, and a struct has a null for every key that some
other row has, so a null among the arguments of tools, in a budget or in an override means that it is not given.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from attrs import evolve, field, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import Medium, Message, Task
from agentkit.protocols.actions import call_id
from agentkit.runs.dataset.rows import Fault, RowFormat, parse_json
from agentkit.runs.dataset.rows import task_of as task_of_fields
from agentkit_verl.plain import deep_merge, is_listed, listed, mapping, plain, without_nulls

CARRIED: Final = "agentkit_task"
"""The key of `extra_info` under which a row carries a task as JSON."""

_OF_VERL = frozenset(("raw_prompt", "agent_name", "uid", "session_id", "global_steps", "priority"))
_TEXT_KINDS = frozenset(("text", "input_text"))
_IMAGE_KINDS = frozenset(("image", "image_url"))


def _arguments(value: object) -> dict[str, Any]:
    try:
        return mapping(plain(value, "tools_kwargs"), "tools_kwargs")
    except Fault as error:
        raise ConfigError(str(error)) from None


@frozen(kw_only=True)
class TaskDefaults:
    """What holds for every row: arguments for tools, over which those of a row are laid, and verl's `data.prompt_key`.

    `tools_kwargs` has a mapping for each tool, and may have `agent` (overrides of the agent section) and `budget`.
    """

    tools_kwargs: Mapping[str, object] = field(factory=dict, converter=_arguments)
    prompt_key: str = "prompt"


def task_of(
    row: Mapping[str, object],
    *,
    validate: bool = False,
    defaults: TaskDefaults = TaskDefaults(),
    media: Sequence[Medium] = (),
) -> Task:
    """The task of a row: what verl passes to `AgentLoopBase.run` beside the sampling parameters.

    Its id is the row's `uid`, which verl gives to each prompt of a step: sessions of one prompt are one group. Without
    one it is the id that the task has in its file, or is made of data source, index and prompt. `media` are the images
    of `raw_prompt` in order. What verl says of the row (`task`: the id in the file, `step`, `validate`) is in
    `metadata["verl"]`, overrides of the agent in `metadata["overrides"]`.

    Raises:
        ConfigError: the row is no task; the message names its data source, its index, the field and what was found.
    """
    try:
        return _task(row, validate, defaults, media)
    except Fault as error:
        raise ConfigError(f"{_place(row)}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{_place(row)}: {str(error).removeprefix('task.')}") from None


def _task(row: Mapping[str, object], validate: bool, defaults: TaskDefaults, media: Sequence[Medium]) -> Task:
    if "raw_prompt" not in row:
        raise Fault("raw_prompt is missing: see data.return_raw_chat of verl")
    opening, parts = _opening(row["raw_prompt"])
    extra_info = mapping(plain(row.get("extra_info"), "extra_info"), "extra_info")
    carried = extra_info.get(CARRIED)
    fields = _columns(row, extra_info, opening, defaults) if carried is None else _carried(carried)
    own_id = str(fields["id"])
    _apply_defaults(fields, defaults)
    said = _said_by_verl(row, own_id, validate)
    if said:
        fields["metadata"] = {**fields["metadata"], "verl": said}
    uid = row.get("uid")
    if uid is not None:
        fields["id"] = str(uid)
    if "messages" not in fields:
        fields["raw_prompt"] = opening
    elif media:
        raise Fault(f"{len(media)} images are given for a task that carries its messages with it")
    task = task_of_fields(fields, 0, RowFormat(prompt_field="raw_prompt"), columns=carried is None)
    return task if "messages" in fields else _with_media(task, parts, media)


def _carried(text: object) -> dict[str, Any]:
    """The fields of a task that its row carries."""
    where = f"extra_info.{CARRIED}"
    if not isinstance(text, str):
        raise Fault(f"{where} must be JSON in text, found {text!r:.80}")
    try:
        fields = mapping(parse_json(text.encode("utf-8", "surrogatepass")), "it")
    except Fault as error:
        raise Fault(f"{where} {error}") from None
    if not isinstance(fields.get("id"), str) or not fields["id"]:
        raise Fault(f"{where} has no id")
    for name in ("data", "budget", "metadata"):
        fields[name] = mapping(fields.get(name), f"{where}.{name}")
    return fields


def _columns(
    row: Mapping[str, object], extra_info: dict[str, Any], opening: list[dict[str, Any]], defaults: TaskDefaults
) -> dict[str, Any]:
    """The fields of the task that columns alone describe."""
    data = _others(row, defaults.prompt_key)
    reward_model = mapping(plain(row.get("reward_model"), "reward_model"), "reward_model")
    named = row.get("tools_kwargs")
    tools_kwargs = without_nulls(plain(extra_info.get("tools_kwargs") if named is None else named, "tools_kwargs"))
    tools, budget, agent = _split(mapping(tools_kwargs, "tools_kwargs"))
    data["extra_info"] = extra_info
    if tools:
        data["tools_kwargs"] = tools
    if reward_model:
        data["reward_model"] = reward_model
    if "ground_truth" in reward_model:
        data["ground_truth"] = reward_model["ground_truth"]
    source, index = data.get("data_source", "unknown"), data.get("index", 0)
    asked = json.dumps([opening, reward_model], sort_keys=True, default=repr)  # rows without an index all say 0
    return {
        "id": f"{source}-{index}-{sha256(asked.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}",
        "data": data,
        "budget": deep_merge(budget, mapping(without_nulls(extra_info.get("budget")), "extra_info.budget")),
        "metadata": {"overrides": agent} if agent else {},
    }


def _split(tools_kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What is for tools, for the budget and for the agent."""
    tools = dict(tools_kwargs)
    budget, agent = (mapping(tools.pop(name, None), f"tools_kwargs.{name}") for name in ("budget", "agent"))
    return tools, budget, agent


def _apply_defaults(fields: dict[str, Any], defaults: TaskDefaults) -> None:
    """Lay the task over what holds for all."""
    tools, budget, agent = _split(dict(defaults.tools_kwargs))
    data, metadata = fields["data"], fields["metadata"]
    if tools:
        own = mapping(data.get("tools_kwargs"), "tools_kwargs")
        fields["data"] = {**data, "tools_kwargs": deep_merge(tools, own)}
    fields["budget"] = deep_merge(budget, fields["budget"])
    if agent:
        own = mapping(metadata.get("overrides"), "metadata.overrides")
        fields["metadata"] = {**metadata, "overrides": deep_merge(agent, own)}


def _others(row: Mapping[str, object], prompt_key: str) -> dict[str, Any]:
    """The columns that are neither verl's own nor anything but plain values: tensors and the like are left out."""
    known = _OF_VERL | {prompt_key, "extra_info", "reward_model", "tools_kwargs"}
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name in known or name.startswith("__") or value is None:
            continue
        try:
            made = plain(value, name)
        except Fault:
            continue
        if name != "interaction_kwargs" or made:
            found[name] = made
    return found


def _said_by_verl(row: Mapping[str, object], own_id: str, validate: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"task": own_id} if row.get("uid") is not None else {}
    step = plain(row.get("global_steps"), "global_steps")
    if step is not None:
        said["step"] = step
    return {**said, "validate": True} if validate else said


def _opening(raw_prompt: object) -> tuple[list[dict[str, Any]], list[list[str | None]]]:
    """The messages as rows of tasks have them, and the parts of each: its texts, and None where an image is shown."""
    if not is_listed(raw_prompt):
        raise Fault(f"raw_prompt must be a list of messages, found {raw_prompt!r:.80}")
    messages: list[dict[str, Any]] = []
    parts: list[list[str | None]] = []
    for number, item in enumerate(listed(raw_prompt)):
        where = f"raw_prompt[{number}]"
        if not isinstance(item, Mapping):
            raise Fault(f"{where} must be an object with role and content, found {item!r:.80}")
        message = {str(key): value for key, value in item.items() if value is not None}
        content = message.pop("content", None)
        message = mapping(plain(message, where), where)
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
        if not message.get("tool_calls", True):  # an empty list stands for none
            del message["tool_calls"]
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_named(call, number, at) for at, call in enumerate(message["tool_calls"])]
        shown = list(_content(content, f"{where}.content"))
        if content is not None:
            is_text = isinstance(content, str) or is_listed(content)
            message["content"] = "".join(part for part in shown if part is not None) if is_text else content
        messages.append(message)
        parts.append(shown)
    return messages, parts


def _named(call: object, message: int, number: int) -> object:
    """A call with an id: verl's datasets write calls without one."""
    if isinstance(call, Mapping) and call.get("id") is None:
        return {**call, "id": call_id(message, number)}
    return call


def _content(content: object, where: str) -> Iterator[str | None]:
    if isinstance(content, str):
        yield str(content)
        return
    if not is_listed(content):
        return  # none, or what is refused by its name later
    for number, part in enumerate(listed(content)):
        if isinstance(part, str):
            yield str(part)
            continue
        if not isinstance(part, Mapping):
            raise Fault(f"{where}[{number}] must be a text or an object with a type, found {part!r:.80}")
        kind = part.get("type")
        if kind in _IMAGE_KINDS:
            yield None
        elif kind in _TEXT_KINDS and isinstance(part.get("text"), str):
            yield str(part["text"])
        else:
            raise Fault(f"{where}[{number}] must be a text or an image, found the type {kind!r:.40}")


def _with_media(task: Task, parts: Sequence[Sequence[str | None]], media: Sequence[Medium]) -> Task:
    wanted = sum(part is None for each in parts for part in each)
    if wanted != len(media):
        raise Fault(f"raw_prompt shows {wanted} images, found {len(media)}: see agentkit_verl.media.prompt_media")
    if not media:
        return task
    coming = iter(media)
    messages: list[Message] = []
    for message, each in zip(task.messages, parts, strict=True):
        filled = tuple(next(coming) if part is None else part for part in each)
        shows = any(isinstance(part, Medium) for part in filled)
        messages.append(evolve(message, parts=tuple(part for part in filled if part != "")) if shows else message)
    return evolve(task, messages=tuple(messages))


def _place(row: Mapping[str, object]) -> str:
    extra_info = row.get("extra_info")
    index = row.get("index", extra_info.get("index") if isinstance(extra_info, Mapping) else None)
    return f"the row of data source {str(row.get('data_source', 'unknown'))!r:.80}, index {index}"
