#!/usr/bin/env python3
"""The official OpenAI client against a running tidegate server with the bundled model.

    test-openai-client.py http://127.0.0.1:8080/v1

Prints one line a check and ends with code 0 if all hold. tests/program/clients.rs runs it.
"""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

STORY = [{"role": "user", "content": "Write a short story about a fox."}]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]


def text_of(chunks, index=0):
    """The text of one choice of a stream."""
    choices = (choice for chunk in chunks for choice in chunk.choices)
    return "".join(choice.delta.content or "" for choice in choices if choice.index == index)


def whole_and_streamed(client, model):
    whole = client.chat.completions.create(model=model, messages=STORY, temperature=0, max_tokens=48)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and len(choice.message.content) > 20, whole
    assert choice.finish_reason in ("stop", "length"), whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=model, messages=STORY, temperature=0, max_tokens=48, stream=True, stream_options=options
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert text_of(chunks) == choice.message.content, "a stream says the same"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == choice.finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1]


def several_choices(client, model):
    whole = client.chat.completions.create(model=model, messages=STORY, n=2, seed=7, temperature=1, max_tokens=24)
    assert [choice.index for choice in whole.choices] == [0, 1], whole
    first, second = (choice.message.content for choice in whole.choices)
    assert first != second, "drawn from different seeds"
    chunks = list(
        client.chat.completions.create(model=model, messages=STORY, n=2, seed=7, temperature=1, max_tokens=24, stream=True)
    )
    assert (text_of(chunks, 0), text_of(chunks, 1)) == (first, second), "equal seeds, equal answers"


def seeds(client, model):
    def ask(seed):
        answer = client.chat.completions.create(model=model, messages=STORY, seed=seed, temperature=1, max_tokens=24)
        return answer.choices[0].message.content

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(4)}) > 1, "other seeds, other answers"
    plain = [client.chat.completions.create(model=model, messages=STORY, temperature=1, max_tokens=24) for _ in range(3)]
    assert len({answer.choices[0].message.content for answer in plain}) > 1, "no seed is a new one each time"


def stop_strings(client, model):
    free = client.chat.completions.create(model=model, messages=STORY, temperature=0, max_tokens=48)
    text = free.choices[0].message.content
    stop = text[20:23]
    cut = client.chat.completions.create(model=model, messages=STORY, temperature=0, max_tokens=48, stop=[stop, "\0never"])
    assert cut.choices[0].message.content == text[: text.index(stop)], (text, stop, cut)
    assert cut.choices[0].finish_reason == "stop", cut


def log_probabilities(client, model):
    answer = client.chat.completions.create(
        model=model, messages=SUM, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content).startswith(answer.choices[0].message.content), content
    for entry in content:
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token, entry
        assert entry.logprob <= 0 and entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob, entry
    stream = client.chat.completions.create(
        model=model, messages=SUM, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3, stream=True
    )
    scored = [c.choices[0].logprobs for c in stream if c.choices and c.choices[0].logprobs]
    assert sum(len(logprobs.content) for logprobs in scored) == len(content)


def legacy_completions(client, model):
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
    assert answer.choices[0].text and len(answer.choices[0].logprobs.tokens) == 8, answer
    stream = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text
    several = client.completions.create(model=model, prompt=["one", "two"], max_tokens=2, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1], several


def extensions(client, model):
    extra = {"ignore_eos": True, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1}
    answer = client.chat.completions.create(model=model, messages=SUM, max_completion_tokens=40, extra_body=extra)
    assert answer.usage.completion_tokens == 40, answer.usage
    assert answer.choices[0].finish_reason == "length"
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == 40 and timings["ttft_ms"] > 0, timings


def models(client, model):
    assert model in [listed.id for listed in client.models.list()]
    assert client.models.retrieve(model).id == model


def errors(client, model):
    def fails(kind, code, **arguments):
        try:
            client.chat.completions.create(**{"model": model, "messages": SUM, "max_tokens": 1, **arguments})
        except kind as error:
            assert error.code == code, error.body
            return error
        raise AssertionError(f"accepted: {arguments.keys()}")

    assert fails(openai.BadRequestError, "invalid_value", temperature="hot").param == "temperature"
    assert fails(openai.BadRequestError, "invalid_value", messages=[]).param == "messages"
    fails(openai.NotFoundError, "model_not_found", model="gpt-9")
    long = [{"role": "user", "content": "word " * 20_000}]
    assert "tokens" in fails(openai.BadRequestError, "context_length_exceeded", messages=long).message
    late = [*SUM, {"role": "system", "content": "late"}]
    fails(openai.BadRequestError, "template_error", messages=late)


async def many_at_once(client, model):
    async def one(number):
        stream = await client.chat.completions.create(
            model=model, messages=STORY, seed=number, temperature=1, max_tokens=24, stream=True
        )
        return text_of([chunk async for chunk in stream])

    together = await asyncio.gather(*(one(number) for number in range(8)))
    alone = [await one(number) for number in range(8)]
    assert together == alone, "the same alone and among others"


async def left_early(client, model):
    stream = await client.chat.completions.create(
        model=model, messages=STORY, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    answer = await client.chat.completions.create(model=model, messages=SUM, max_tokens=4)
    assert answer.usage.completion_tokens <= 4


def main(base_url):
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300)
    model = client.models.list().data[0].id
    for check in (
        models,
        whole_and_streamed,
        several_choices,
        seeds,
        stop_strings,
        log_probabilities,
        legacy_completions,
        extensions,
        errors,
    ):
        check(client, model)
        print("ok", check.__name__)

    async def asynchronous():
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300) as client:
            for check in (many_at_once, left_early):
                await check(client, model)
                print("ok", check.__name__)

    asyncio.run(asynchronous())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
