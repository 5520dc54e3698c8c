#!/usr/bin/env python3
"""Writes fixtures/templates/*.json: what Python's Jinja, set up as `transformers` sets it up, makes of some conversations with the chat
templates of that folder.

    pip install jinja2==3.1.6
    scripts/template-goldens.py [--extra DIR]

With --extra, goldens for all *.jinja in DIR are written beside them, for a check by hand:

    TIDEGATE_TEMPLATES=DIR cargo test --release --test templates
"""

import argparse
import datetime
import json
import pathlib

from jinja2 import TemplateError, ext
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 1, 15, 12, 0)

# name -> tokens, and what the template takes (read off by hand): content in parts, arguments of tool calls as text, no null content
CHATML = dict(bos="", eos="<|im_end|>", controls=["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
TEMPLATES = {
    "qwen3": dict(CHATML, empty_content=True),
    "qwen3-coder": CHATML,
    "qwen3.6": dict(CHATML, parts=True),
    "granite-4.0": dict(bos="<|end_of_text|>", eos="<|end_of_text|>", controls=["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], parts=True),
    "gpt-oss": dict(bos="<|startoftext|>", eos="<|return|>", controls=["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|constrain|>"], empty_content=True),
    "glm-4.6": dict(bos="", eos="<|endoftext|>", controls=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"], parts=True),
    "glm-4.7-flash": dict(bos="", eos="<|endoftext|>", controls=["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"], parts=True),
    "deepseek-v3.1": dict(bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", controls=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"], text_arguments=True),
    "minimax-m2": dict(bos="]~!b[", eos="[e~[", controls=["]~!b[", "]~b]", "[e~["], parts=True),
    "kimi-k2": dict(bos="[BOS]", eos="[EOS]", controls=["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"], parts=True),
    "gemma-4": dict(bos="<bos>", eos="<eos>", controls=["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|think|>"], parts=True, empty_content=True),
    "mixtral": dict(bos="<s>", eos="</s>", controls=["<s>", "</s>", "<unk>"]),
    "olmoe": dict(bos="|||IP_ADDRESS|||", eos="<|endoftext|>", controls=["<|endoftext|>", "<|padding|>", "|||IP_ADDRESS|||"], empty_content=True),
}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.\nIn °C, \"now\" or later.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "City, e.g. Zürich"},
        "days": {"type": "integer", "minimum": 0, "maximum": 7, "default": 0},
        "unit": {"type": "string", "enum": ["°C", "K"], "default": "°C"},
        "detail": {"type": ["number", "null"], "default": 0.5}}}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Finds pages",
    "parameters": {"type": "object", "properties": {
        "query": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean", "default": False}}, "additionalProperties": False}}}, "strict": True}}


def call(identity, name, arguments):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "You are brief."}
CALL = call("call00001", "get_weather", {"place": "Zürich", "days": 1, "detail": 1.0})
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"celsius\": -3.5, \"sky\": \"☁\"}"}
SECOND = call("call00002", "search", {"query": "a \"b\" <c> & 'd'\n\\e", "tags": ["x", "é"], "options": {"deep": True}})
SECOND_RESULT = {"role": "tool", "tool_call_id": "call00002", "name": "search", "content": "nothing found"}

# Some contents change when content is joined from parts; `parts` says what to join to where a template takes text only.
CONVERSATIONS = [
    dict(name="one question", messages=[user("Hello!")]),
    dict(name="system", messages=[SYSTEM, user("Hello!")]),
    dict(name="several turns", messages=[SYSTEM, user("1+1?"), assistant("2"), user("And 2+2?"), assistant("4"), user("Thanks.")]),
    dict(name="without the head of an answer", messages=[user("1+1?"), assistant("2")], add_generation_prompt=False),
    dict(name="unicode and white space", messages=[user("  Grüße, 世界 👩‍👩‍👧‍👦\n\n\tend \u2003\n"), assistant("\n ok \n"), user("\u00e9 e\u0301 \u202e \ufeff")]),
    dict(name="words that look like templates", messages=[user("{{ messages }} {% if x %} {# c #} '\" \\n &lt; <b>"), assistant("```jinja\n{% raw %}\n```"), user("%}")]),
    dict(name="empty words", messages=[SYSTEM, user(""), assistant(""), user(" ")]),
    dict(name="parts", messages=[user([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]), assistant([{"type": "text", "text": "Three."}]), user([{"type": "text", "text": "Four."}])]),
    dict(name="tools", messages=[user("Weather in Zürich?")], tools=[WEATHER, SEARCH]),
    dict(name="tools and system", messages=[SYSTEM, user("Weather in Zürich?")], tools=[WEATHER]),
    dict(name="a tool call", messages=[SYSTEM, user("Weather?"), assistant(None, tool_calls=[CALL]), RESULT], tools=[WEATHER]),
    dict(name="words and a tool call", messages=[user("Weather?"), assistant("Let me see.", tool_calls=[CALL]), RESULT, assistant("Cold."), user("And now?")], tools=[WEATHER]),
    dict(name="two tool calls", messages=[user("Both?"), assistant("", tool_calls=[CALL, SECOND]), RESULT, SECOND_RESULT, assistant("Cold."), user("Thanks.")], tools=[WEATHER, SEARCH]),
    dict(name="thinking off", messages=[user("Hello!")], variables={"enable_thinking": False, "reasoning_effort": "low"}),
    dict(name="thinking on", messages=[user("Hello!")], variables={"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    dict(name="earlier thoughts", messages=[user("1+1?"), assistant("<think>\nIt is two.\n</think>\n\n2"), user("Sure?"), assistant("<think>\nYes.\n</think>\n\nYes."), user("Good.")]),
    dict(name="thoughts in a field", messages=[user("Weather?"), assistant("", reasoning_content="Look it up.", tool_calls=[CALL]), RESULT], tools=[WEATHER]),
    dict(name="thoughts by another name", messages=[user("1+1?"), assistant("", reasoning="Look it up.", tool_calls=[CALL]), RESULT], tools=[WEATHER]),
    dict(name="nobody asked", messages=[SYSTEM]),
    dict(name="two questions", messages=[user("One?"), user("Two?")]),
    dict(name="late system", messages=[user("Hello!"), SYSTEM, user("Well?")]),
    dict(name="unknown role", messages=[{"role": "critic", "content": "Hm."}]),
]


class Generation(Extension):
    """transformers' tag for training masks; renders what it encloses."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class Refused(Exception):
    """What a template raised."""


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = NOW.strftime
    return result


def formed(messages, meta):
    """Messages in the form that a template wants."""
    result = json.loads(json.dumps(messages))
    for message in result:
        # as transformers does: what was thought is there under both names that templates read, whatever the client calls it
        thoughts = next((message[name] for name in ("reasoning_content", "thinking", "reasoning") if message.get(name) is not None), None)
        if thoughts is not None:
            message.setdefault("thinking", thoughts)
            message["reasoning_content"] = thoughts
        if isinstance(message["content"], list) and not meta.get("parts"):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        if message["content"] is None and meta.get("empty_content"):
            message["content"] = ""
        for tool_call in message.get("tool_calls", []):
            if not meta.get("text_arguments"):
                tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
    return result


def golden(source, meta, conversation):
    """The prompt, or why there is none."""
    try:
        template = environment().from_string(source)
        return {"text": template.render(
            messages=formed(conversation["messages"], meta), tools=conversation.get("tools"), documents=None,
            add_generation_prompt=conversation.get("add_generation_prompt", True), bos_token=meta["bos"], eos_token=meta["eos"],
            **conversation.get("variables", {}))}
    except Refused as refusal:
        return {"refused": str(refusal)}
    except (TemplateError, TypeError, KeyError, AttributeError, ValueError, IndexError, RecursionError) as error:
        return {"failed": str(error)}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def goldens(path, meta):
    source = path.read_text()
    write(path.with_suffix(".json"), dict(
        bos=meta["bos"], eos=meta["eos"], controls=meta["controls"],
        goldens={c["name"]: golden(source, meta, c) for c in CONVERSATIONS}))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--extra", type=pathlib.Path, help="folder with further templates")
    given = arguments.parse_args()
    folder = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "templates"
    write(folder / "conversations.json", CONVERSATIONS)
    for name, meta in TEMPLATES.items():
        goldens(folder / f"{name}.jinja", meta)
    if given.extra:
        write(given.extra / "conversations.json", CONVERSATIONS)
        for path in given.extra.glob("*.jinja"):
            meta = dict(CHATML, bos="<s>", eos="</s>")
            text, parts = (golden(path.read_text(), dict(meta, parts=True), dict(messages=[user(c)])) for c in ("x", [{"type": "text", "text": "x"}]))
            goldens(path, dict(meta, parts="text" in text and text == parts))


if __name__ == "__main__":
    main()
