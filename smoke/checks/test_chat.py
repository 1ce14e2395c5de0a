"""Chat and streaming: answers are visible, complete, counted, and the same through every door."""

from __future__ import annotations

import openai
import pytest

from smoke.engine.client import NO_THINK
from smoke.errors import expect
from smoke.garbage import verdict
from smoke.session import Session

ASK = "Name the capital of France in one short sentence."


def test_visible_answer(s: Session) -> None:
    """A chat request gets a visible answer"""
    choice = s.engine.chat(ASK, **NO_THINK)["choices"][0]
    text = choice["message"].get("content") or ""
    expect(
        "chat.visible",
        text.strip(),
        f"the answer has no text (finish_reason {choice.get('finish_reason')})",
        "if all tokens went into reasoning, set the reasoning parser and allow more tokens",
    )
    expect(
        "chat.markup",
        "<|" not in text and "</think>" not in text,
        f"template markup leaks into the answer: {text!r}",
        "the chat template or the reasoning parser does not fit the checkpoint",
    )
    why = verdict(text)
    expect(
        "chat.garbage", why is None, f"the answer is garbage: {why}", "suspect scales or the KV dtype first"
    )


@pytest.mark.needs("planted")
def test_planted_answer(s: Session) -> None:
    """The answer is the planted one, word for word"""
    want = s.subject.chat_answer
    s.need(want, "the preset names no planted answer")
    text = s.engine.chat(ASK, **NO_THINK)["choices"][0]["message"].get("content")
    expect(
        "chat.planted",
        text == want,
        f"the fixture must answer {want!r}, it answered {text!r}",
        "weights, scales or head are read wrongly: compare log-probabilities (group logprobs)",
    )


def test_usage(s: Session) -> None:
    """usage counts prompt and completion"""
    d = s.engine.chat(ASK, max_tokens=5, ignore_eos=True, **NO_THINK)
    u = d.get("usage") or {}
    ok = u.get("completion_tokens") == 5 and u.get("prompt_tokens", 0) > 0
    ok = ok and u.get("total_tokens") == u["prompt_tokens"] + 5
    expect(
        "chat.usage",
        ok,
        f"5 tokens were asked for with ignore_eos, usage says {u}",
        "accounting and every measurement here rests on usage: do not trust this server's figures",
    )
    finish = d["choices"][0].get("finish_reason")
    expect(
        "chat.finish",
        finish == "length",
        f"cut at max_tokens, finish_reason is {finish!r}",
        "clients continue a cut answer only when told it was cut",
    )


def test_greedy_repeats(s: Session) -> None:
    """The same greedy request twice gives the same answer"""
    a, b = (
        s.engine.chat(ASK, max_tokens=32, **NO_THINK)["choices"][0]["message"]["content"] for _ in range(2)
    )
    expect(
        "chat.repeat",
        a == b,
        f"two greedy answers differ: {a!r} and {b!r}",
        "alone on the server they must agree: suspect uninitialized state or a reused slot",
    )


def test_stream_is_the_same(s: Session) -> None:
    """A streamed answer equals the whole one, ends with [DONE] and carries usage"""
    whole = s.engine.chat(ASK, max_tokens=32, **NO_THINK)["choices"][0]["message"]["content"]
    st = s.engine.stream(ASK, max_tokens=32, **NO_THINK)
    expect(
        "chat.done", st.done, "the stream did not end with [DONE]", "clients wait for it until their time-out"
    )
    expect(
        "chat.stream",
        st.text == whole,
        f"streamed {st.text!r}, whole {whole!r}",
        "the detokenizer drops or repeats text at chunk borders",
    )
    expect(
        "chat.stream_usage",
        (st.usage or {}).get("completion_tokens", 0) > 0,
        f"stream_options.include_usage was set, usage is {st.usage}",
        "events carry several tokens under speculation, so nothing else counts them",
    )


def test_stop_string(s: Session) -> None:
    """A stop string ends the answer and is left out of it"""
    whole = s.engine.chat(ASK, max_tokens=32, **NO_THINK)["choices"][0]["message"]["content"]
    words = whole.split()
    s.need(len(words) >= 3, f"the answer is too short to cut: {whole!r}")
    stop = words[len(words) // 2]
    c = s.engine.chat(ASK, max_tokens=32, stop=[stop], **NO_THINK)["choices"][0]
    text = c["message"]["content"] or ""
    expect(
        "chat.stop",
        stop not in text and c.get("finish_reason") == "stop",
        f"stop={stop!r} gave {text!r} with finish_reason {c.get('finish_reason')!r}",
        "agents rely on stop strings; under speculation the cut must fall inside a block",
    )


def test_several_choices(s: Session) -> None:
    """n=2 returns two choices"""
    n = len(s.engine.chat(ASK, n=2, max_tokens=8, temperature=0.7, seed=7, **NO_THINK)["choices"])
    expect("chat.n", n == 2, f"asked for two choices, got {n}", "clients that sample will miss answers")


def test_sampling(s: Session) -> None:
    """A sampled request works and its tokens are text"""
    text = s.engine.chat(ASK, temperature=0.8, top_p=0.9, top_k=20, max_tokens=48, **NO_THINK)["choices"][0][
        "message"
    ].get("content")
    why = verdict(text or "") if text else "it is empty"
    expect(
        "chat.sampled",
        why is None,
        f"a sampled answer is bad: {why}",
        "the sampled verification differs from the greedy one: try without speculation",
    )


def test_system_in_the_middle(s: Session) -> None:
    """A system message in the middle of a conversation is accepted"""
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "Answer in English."},
        {"role": "user", "content": ASK},
    ]
    r = s.engine.chat_raw(turns, max_tokens=8, **NO_THINK)
    expect(
        "chat.system_mid",
        r.status_code == 200,
        f"answered {r.status_code}: {r.text[:200]}",
        "agents do this; serve with the preset's patched chat template",
    )


def test_completions(s: Session) -> None:
    """/v1/completions answers"""
    d = s.engine.completion("The ferry left the harbour and", max_tokens=8, ignore_eos=True)
    text = d["choices"][0].get("text")
    expect("chat.completions", text, "a text completion is empty", "read the engine's log")


def test_anthropic_messages(s: Session) -> None:
    """/v1/messages answers in Anthropic's form"""
    body = {"model": s.engine.model, "max_tokens": 24, "messages": [{"role": "user", "content": ASK}]}
    r = s.engine.request("POST", "/v1/messages", json=body)
    s.need(r.status_code != 404, "this engine has no /v1/messages")
    ok = (
        r.status_code == 200
        and r.json().get("type") == "message"
        and isinstance(r.json().get("content"), list)
    )
    expect(
        "chat.messages",
        ok,
        f"answered {r.status_code}: {r.text[:200]}",
        "Claude-style clients need this route; others are not affected",
    )


def test_official_client(s: Session) -> None:
    """The official OpenAI client understands the answers, whole and streamed"""
    client = openai.OpenAI(
        base_url=f"{s.engine.url}/v1",
        api_key=s.engine.api_key or "none",
        max_retries=0,
        timeout=s.profile.request_s,
    )
    try:
        with client:
            r = client.chat.completions.create(
                model=s.engine.model,
                messages=[{"role": "user", "content": ASK}],
                max_tokens=24,
                temperature=0,
                extra_body=NO_THINK,
            )
            parts = [
                c.choices[0].delta.content or ""
                for c in client.chat.completions.create(
                    model=s.engine.model,
                    messages=[{"role": "user", "content": ASK}],
                    max_tokens=24,
                    temperature=0,
                    stream=True,
                    extra_body=NO_THINK,
                )
                if c.choices
            ]
            got: object = (
                r.object,
                r.choices[0].message.role,
                r.choices[0].message.content == "".join(parts),
            )
    except openai.OpenAIError as e:
        got = f"{type(e).__name__}: {e}"
    expect(
        "chat.openai",
        got == ("chat.completion", "assistant", True),
        f"the openai client got {got}",
        "an answer has a shape the client does not know, or the two forms differ",
    )
