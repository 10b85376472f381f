"""Tests the endpoints beyond chat with servers that others wrote: real weights for embeddings and transcriptions, llama.cpp, and a
vendor that counts nothing. The gateway's clients get the same objects as the server's own, and each request is debited once."""

import io
import json
import math
import os
import re
import subprocess
import wave
from decimal import Decimal
from pathlib import Path

import cohere
import httpx
import openai
import pytest

from gateway import BASE_URL, Account, chat_client, command, create_account, eventually, get, settled_credits

URLS = json.loads(os.environ["GATEWAY_SERVER_URLS"])
MODELS = {model: (URLS[name], entry["upstream_model"])
          for name, server in json.loads(Path(__file__).with_name("servers.json").read_text()).items()
          for model, entry in server["models"].items()}
MICRO = Decimal("0.000001")
# Every model costs this for a token. A second, search unit, image or character costs a credit.
TOKEN = Decimal("0.001")


def funded(credits: Decimal) -> Account:
    account = create_account(trial=False)
    command("account", "top-up", account.email, str(credits), "--ref", account.account_id)
    return account


def answers(model: str, ask):
    """Returns the objects that the server itself and the gateway give, and the gateway's receipt of the account's one debit."""
    url, upstream = MODELS[model]
    own = ask(chat_client("any", base_url=f"{url}/v1"), upstream)
    account = funded(Decimal(100))
    client = chat_client(account.key)
    found = ask(client, model)
    request = client._client.answered[-1].headers["x-request-id"]
    receipt = eventually("a receipt", lambda: (answer := get(f"/v1/receipts/{request}", account.key)).status_code == 200
                         and answer.json())
    left = Decimal(settled_credits(account.key)["balance"])
    assert left == 100 - Decimal(receipt["credits"]), "it is the only debit"
    return own, found, receipt


def cost(receipt: dict) -> Decimal:
    return Decimal(receipt["credits"])


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


TEXTS = ["A cat sleeps on the warm sofa.", "The kitten naps on a soft couch.", "The central bank raised its interest rates."]


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_embeddings_of_real_weights_are_the_servers_own(options):
    ask = lambda client, model: client.embeddings.create(model=model, input=TEXTS, **options)  # noqa: E731
    own, found, receipt = answers("real-embed", ask)
    assert found.data == own.data and found.usage == own.usage
    cat, kitten, bank = (item.embedding for item in found.data)
    assert len(cat) == 384
    assert dot(cat, kitten) > dot(cat, bank) + 0.02, "like sentences are closer"
    assert (cost(receipt), receipt["estimated"]) == (own.usage.prompt_tokens * TOKEN, False)


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    text = "My telephone number is five, five, five, one, two."
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", path, text], check=True, timeout=60)
    return path.read_bytes()


@pytest.mark.parametrize("model, options, is_estimated", [
    ("real-scribe", {}, True),
    ("real-scribe", {"response_format": "verbose_json"}, False),
    ("real-scribe-tokens", {"language": "en"}, True),
], ids=["json", "verbose", "tokens"])
def test_a_transcription_by_real_weights_is_the_servers_own(speech, model, options, is_estimated):
    ask = lambda client, name: client.audio.transcriptions.create(model=name, file=("a.wav", speech), **options)  # noqa: E731
    own, found, receipt = answers(model, ask)
    assert found == own
    assert "telephone number" in found.text.lower()
    with wave.open(io.BytesIO(speech)) as file:
        seconds = math.ceil(file.getnframes() / file.getframerate())
    expected = seconds if model == "real-scribe" else seconds * 20 * TOKEN
    assert (cost(receipt), receipt["estimated"]) == (expected, is_estimated)


def test_a_refusal_of_a_real_server_keeps_its_words(speech):
    client = chat_client(funded(Decimal(100)).key)
    with pytest.raises(openai.BadRequestError, match="Unsupported response_format: srt"):
        client.audio.transcriptions.create(model="real-scribe", file=("a.wav", speech), response_format="srt")


def stream(create):
    return lambda client, model: list(create(client, model))


def said(answer) -> tuple:
    """Returns what does not depend on the server's cache, of a completion or of the last event of its stream."""
    usage = answer.usage
    return [choice.model_dump() for choice in answer.choices], usage and (usage.prompt_tokens, usage.completion_tokens)


TEXT = {"prompt": "Grüße", "max_tokens": 8, "suffix": "end", "logprobs": 2}
PROMPTS = {"prompt": ["one text", "and another"], "max_tokens": 3, "stop": "x"}
IDS = {"prompt": [1, 80, 81], "max_tokens": 4, "echo": True, "user": "someone"}


@pytest.mark.parametrize("options, streamed", [(TEXT, False), (PROMPTS, False), (IDS, False), (TEXT, True), (IDS, True)])
def test_a_completion_of_a_real_server_is_its_own(options, streamed):
    if streamed:
        options = {**options, "stream": True, "stream_options": {"include_usage": True}}
    ask = lambda client, model: client.completions.create(model=model, temperature=0, **options)  # noqa: E731
    own, found, receipt = answers("real-text", stream(ask) if streamed else ask)
    if not streamed:
        own, found = [own], [found]
    assert [said(answer) for answer in found] == [said(answer) for answer in own]
    assert {answer.model for answer in found} == {"real-text"}
    usages = [answer.usage for answer in found if answer.usage]
    tokens = sum(usage.total_tokens for usage in usages[-1:])
    assert (cost(receipt), receipt["estimated"]) == (tokens * TOKEN, False)


def test_a_stream_of_several_prompts_ends_with_an_error_and_is_free():
    # llama.cpp streams one prompt after another, each with a usage, and `data: null` between them, which the gateway does not know.
    account = funded(Decimal(100))
    with pytest.raises(openai.APIError, match="in a form that this gateway does not know"):
        list(chat_client(account.key).completions.create(model="real-text", stream=True, **PROMPTS))
    assert Decimal(settled_credits(account.key)["balance"]) == 100


def silence(seconds: int) -> tuple[str, bytes]:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8_000)
        file.writeframes(bytes(8_000 * seconds))
    return "a.wav", target.getvalue()


def rank(client: openai.OpenAI, model: str):
    http = httpx.Client(trust_env=False, event_hooks={"response": [client._client.answered.append]})
    ranker = cohere.ClientV2(api_key=client.api_key, base_url=str(client.base_url).removesuffix("/v1/"), httpx_client=http)
    return ranker.rerank(model=model, query="which?", documents=["0123", "45"])


def lasting(answer) -> str:
    """Returns an answer as JSON, without what differs between two answers to one request."""
    text = json.dumps(answer, default=lambda value: value.model_dump() if hasattr(value, "model_dump") else str(value))
    return re.sub(r'"(id|created)": ("[^"]*"|[0-9]+)', "", text)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PAINT = 1_056  # tokens of an image

# What is asked for, and what it costs without a count: a text has 0.3 tokens for each byte.
CARELESS = {
    "a text": ("careless-embed", lambda c, m: c.embeddings.create(model=m, input="0123456789"), 3 * TOKEN, True),
    "texts": ("careless-embed", lambda c, m: c.embeddings.create(model=m, input=["0123456", "789"], encoding_format="float"), 3 * TOKEN, True),
    "token ids": ("careless-embed", lambda c, m: c.embeddings.create(model=m, input=[1, 2, 3]), 3 * TOKEN, True),
    "search units": ("careless-rank", rank, 1, True),
    "ranked tokens": ("careless-rank-tokens", rank, 6 * TOKEN, True),
    "moderation": ("careless-guard", lambda c, m: c.moderations.create(model=m, input="0123456789"), 3 * TOKEN, True),
    "moderated image": ("careless-guard", lambda c, m: c.moderations.create(model=m, input=[IMAGE]), 85 * TOKEN, True),
    "image": ("careless-paint", lambda c, m: c.images.generate(model=m, prompt="0123456789", n=2), (3 + 2 * PAINT) * TOKEN, True),
    "edit": ("careless-paint", lambda c, m: c.images.edit(model=m, prompt="0123456789", image=b"one"), (3 + PAINT) * TOKEN, True),
    "number of images": ("careless-paint-count", lambda c, m: c.images.generate(model=m, prompt="A cat."), 1, False),
    "speech": ("careless-voice", lambda c, m: c.audio.speech.create(model=m, input="Grüße", voice="alloy").content, 5, False),
    **{f"transcription as {form}": ("careless-scribe", lambda c, m, form=form: c.audio.transcriptions.create(
        model=m, file=silence(3), response_format=form), 3, True) for form in ["json", "verbose_json", "text", "srt", "vtt"]},
    "audio without a length": ("careless-scribe", lambda c, m: c.audio.transcriptions.create(model=m, file=("a.mp3", b"x" * 1_000)), 4, True),
    "streamed transcription": ("careless-scribe", stream(lambda c, m: c.audio.transcriptions.create(
        model=m, file=silence(3), stream=True)), 3, True),
    "transcribed tokens": ("careless-scribe-tokens", lambda c, m: c.audio.transcriptions.create(
        model=m, file=silence(3), prompt="0123456789"), (3 + 3 * 20) * TOKEN, True),
    "translation": ("careless-scribe", lambda c, m: c.audio.translations.create(model=m, file=silence(2)), 2, True),
}


@pytest.mark.parametrize("name", CARELESS)
def test_a_vendor_that_counts_nothing_is_paid_an_estimate_that_was_held(name):
    model, ask, expected, is_estimated = CARELESS[name]
    own, found, receipt = answers(model, ask)
    assert lasting(found) == lasting(own).replace(MODELS[model][1], model)
    assert (cost(receipt), receipt["estimated"], receipt.get("implausible")) == (expected, is_estimated, None)
    # An account that lacks a millionth of the debit cannot pay what is held.
    with pytest.raises(Exception, match="402"):
        ask(chat_client(funded(cost(receipt) - MICRO).key), model)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_chat_vendor_that_counts_nothing_is_paid_an_estimate(streamed):
    messages = [{"role": "user", "content": "Hello"}]
    _, found, receipt = answers("careless-chat", lambda client, model: list(client.chat.completions.create(
        model=model, messages=messages, max_completion_tokens=50, stream=streamed)))
    assert "Some words." in str(found) or streamed
    assert cost(receipt) > 0 and receipt["estimated"] and "implausible" not in receipt
