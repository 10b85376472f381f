"""Tests the endpoints beyond chat with the libraries of the vendors that have them: they get the same objects from the gateway
as from the vendor itself, and each request costs what the vendor counted."""

import functools
import inspect
import io
import os
import wave
from decimal import Decimal

import cohere
import httpx
import openai
import pytest
import voyageai

from gateway import BASE_URL, METERED, TLS, chat_client, settled_credits, stripe_url

VENDOR_URL = stripe_url()
VENDOR_KEY = "sim-beta-key"
TOKEN_IDS = [15339, 1917, 0]


def upstream(model: str) -> str:
    return METERED[model]["upstream_model"]


def vendor_client() -> openai.OpenAI:
    return chat_client(VENDOR_KEY, base_url=f"{VENDOR_URL}/v1")


def renamed(answer, model: str) -> dict:
    """Returns an answer as the gateway's clients see it: with its name of the model."""
    found = answer.model_dump()
    assert found["model"] == upstream(model)
    return {**found, "model": model}


def balance(account) -> Decimal:
    return Decimal(settled_credits(account.key)["balance"])


@pytest.mark.parametrize("options", [
    {"input": "Grüße"},
    {"input": ["one text", "and another"], "dimensions": 5},
    {"input": TOKEN_IDS, "encoding_format": "float"},
    {"input": [TOKEN_IDS, TOKEN_IDS[:1]], "encoding_format": "base64", "user": "someone"},
], ids=["text", "texts", "ids", "lists of ids"])
def test_embeddings_are_the_vendors_own(account, options):
    own = vendor_client().embeddings.create(model=upstream("beta-embed"), **options)
    before = balance(account)
    found = chat_client(account.key).embeddings.create(model="beta-embed", **options)
    assert found.model_dump() == renamed(own, "beta-embed")
    # 1 000 000 tokens cost 13 credits.
    assert before - balance(account) == own.usage.prompt_tokens * Decimal("0.000013")


def test_a_moderation_is_the_vendors_own_and_its_model_may_be_left_out(account):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    for given in ["fine", ["fine", "too"], [{"type": "text", "text": "fine"}, image]]:
        own = vendor_client().moderations.create(input=given)
        found = chat_client(account.key).moderations.create(input=given)
        assert found.model_dump() == renamed(own, "beta-guard")


@pytest.mark.parametrize("options", [{"input": ""}, {"input": "x", "dimensions": 0}], ids=["empty", "no dimensions"])
def test_a_refusal_keeps_the_vendors_words_and_its_parameter(account, options):
    faults = []
    for client, model in [(vendor_client(), upstream("beta-embed")), (chat_client(account.key), "beta-embed")]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=model, **options)
        fault = refused.value
        faults.append((fault.param, fault.code, fault.body["message"]))
    assert faults[0] == faults[1]


TEXTS = ["first text", "second text", "third text"]


def cohere_client(version, address: str, key: str):
    return version(api_key=key, base_url=address, httpx_client=httpx.Client(trust_env=False, verify=TLS))


def voyage_client(address: str, key: str):
    return voyageai.Client(api_key=key, base_url=f"{address}/v1")


EMBEDDED, RANKED, HEARD = "beta-embed-cohere", "beta-rank", "beta-scribe"
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
FIRST, SECOND = cohere.Client, cohere.ClientV2
# Each call of Cohere's library with its options, and those that the gateway refuses.
COHERE = {
    "embed": (SECOND, EMBEDDED, {"texts": TEXTS, "input_type": "search_document", "max_tokens": 100, "output_dimension": 16,
                                 "embedding_types": TYPES, "truncate": "END", "priority": 1}, {"images", "inputs"}),
    "first embed": (FIRST, EMBEDDED, {"texts": TEXTS, "input_type": "search_query", "embedding_types": ["float", "int8"],
                                      "truncate": "NONE"}, {"images"}),
    "rerank": (SECOND, RANKED, {"query": "which?", "documents": TEXTS, "top_n": 2, "max_tokens_per_doc": 99, "priority": 1,
                                 "relevant_spans": cohere.RerankRelevantSpans(mode="enabled", threshold=0.5)}, set()),
    "first rerank": (FIRST, RANKED, {"query": "which?", "documents": [{"text": "one"}, "two"], "top_n": 2, "rank_fields": ["text"],
                                     "return_documents": False, "max_chunks_per_doc": 3}, set()),
    "audio.transcriptions.create": (SECOND, HEARD, {"language": "en", "file": ("a.wav", b"RIFF", "audio/wav"), "temperature": 0.5},
                                    set()),
}
# The same for Voyage's. Its library cuts texts by `chunk_fn` itself.
VOYAGE = {
    "embed": ("beta-embed-voyage", {"texts": TEXTS, "input_type": "query", "truncation": False, "output_dtype": "int8",
                                    "output_dimension": 16}),
    "contextualized_embed": ("beta-embed-voyage", {
        "inputs": [["first text"], ["second text"]], "input_type": "document", "output_dtype": "float", "output_dimension": 16,
        "chunk_fn": None, "enable_auto_chunking": True, "chunk_size": 128, "chunk_overlap": 0}),
    "rerank": ("beta-rank-2", {"query": "which?", "documents": TEXTS, "top_k": 1, "truncation": False}),
}


def method(client, name: str):
    return functools.reduce(getattr, name.removeprefix("first ").split("."), client)


def without_options(options: dict, needed: set) -> dict:
    return {name: value for name, value in options.items() if name in needed}


@pytest.mark.parametrize("all_options", [True, False], ids=["all options", "none"])
@pytest.mark.parametrize("name", COHERE)
def test_what_coheres_library_gets_is_the_vendors_own(account, name, all_options):
    version, model, options, refused = COHERE[name]
    known = set(inspect.signature(method(cohere_client(version, BASE_URL, "k"), name)).parameters)
    assert known - {"self", "model", "request_options", "batching"} == options.keys() | refused
    if not all_options:
        options = without_options(options, {"texts", "input_type", "query", "documents", "language", "file"})
    own = method(cohere_client(version, VENDOR_URL, VENDOR_KEY), name)(model=upstream(model), **options).model_dump()
    before = balance(account)
    assert method(cohere_client(version, BASE_URL, account.key), name)(model=model, **options).model_dump() == own
    # 1 000 000 tokens cost 12 credits, 1 000 search units 200, a second of audio 1.
    billed = (own.get("meta") or {}).get("billed_units") or {}
    tokens = Decimal(billed.get("input_tokens") or 0) * Decimal("0.000012")
    assert before - balance(account) == (tokens or Decimal("0.2") if model != HEARD else 1)


@pytest.mark.parametrize("options", [{"images": ["data:image/png;base64,AA"]}, {"inputs": [{"content": []}]}], ids=["images", "inputs"])
def test_images_that_cohere_would_embed_are_refused(account, options):
    with pytest.raises(cohere.BadRequestError, match="price of their own"):
        cohere_client(SECOND, BASE_URL, account.key).embed(model=EMBEDDED, input_type="image", **options)


@pytest.mark.parametrize("options", ["all", "none", *TYPES[1:5], "chunk_fn"])
@pytest.mark.parametrize("name", VOYAGE)
def test_what_voyages_library_gets_is_the_vendors_own(account, name, options, monkeypatch):
    # The library takes a certificate authority only so.
    if authority := os.environ.get("SSL_CERT_FILE"):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority)
    model, given = VOYAGE[name]
    assert set(inspect.signature(getattr(voyageai.Client, name)).parameters) - {"self", "model"} == given.keys()
    if options != "all":
        given = without_options(given, {"texts", "inputs", "query", "documents"})
    if options in TYPES and name != "rerank":
        given["output_dtype"] = options
    if options == "chunk_fn" and name == "contextualized_embed":
        given["chunk_fn"] = lambda text: text.split(" ")
    own = getattr(voyage_client(VENDOR_URL, VENDOR_KEY), name)(model=upstream(model), **given)
    before = balance(account)
    found = getattr(voyage_client(BASE_URL, account.key), name)(model=model, **given)
    assert vars(found) == vars(own)
    # 1 000 000 tokens cost 6 and 5 credits.
    price = Decimal("0.000005") if name == "rerank" else Decimal("0.000006")
    assert before - balance(account) == own.total_tokens * price > 0


COMPLETIONS = [
    {"prompt": "Grüße", "suffix": "end", "max_tokens": 5, "stop": "x", "temperature": 0.5, "top_p": 0.9, "user": "someone"},
    {"prompt": ["one text", "and another"], "n": 2, "best_of": 3, "logprobs": 2, "seed": 7},
    {"prompt": TOKEN_IDS, "echo": True, "presence_penalty": 1, "frequency_penalty": -1, "stop": ["x", "y"]},
    {"prompt": [TOKEN_IDS, TOKEN_IDS[:1]], "logit_bias": {"50256": -100}},
]
COMPLETION_IDS = ["text", "texts", "ids", "lists of ids"]


def lasting(answer, model: str) -> dict:
    """Returns a completion without what differs between two answers to one request."""
    return {**renamed(answer, model), "id": "", "created": 0}


def cost_of(usage) -> Decimal:
    # 1 000 000 tokens cost 150 and 200 credits.
    return usage.prompt_tokens * Decimal("0.00015") + usage.completion_tokens * Decimal("0.0002")


@pytest.mark.parametrize("options", COMPLETIONS, ids=COMPLETION_IDS)
def test_a_completion_is_the_vendors_own(account, options):
    own = vendor_client().completions.create(model=upstream("beta-text"), **options)
    before = balance(account)
    found = chat_client(account.key).completions.create(model="beta-text", **options)
    assert {**found.model_dump(), "id": "", "created": 0} == lasting(own, "beta-text")
    assert before - balance(account) == cost_of(own.usage)


@pytest.mark.parametrize("options", COMPLETIONS, ids=COMPLETION_IDS)
def test_a_streamed_completion_is_the_vendors_own(account, options):
    options = {**options, "best_of": None, "stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    own = [lasting(chunk, "beta-text") for chunk in vendor_client().completions.create(model=upstream("beta-text"), **options)]
    before = balance(account)
    chunks = list(chat_client(account.key).completions.create(model="beta-text", **options))
    assert [{**chunk.model_dump(), "id": "", "created": 0} for chunk in chunks] == own
    assert before - balance(account) == cost_of(chunks[-1].usage)


def wav(seconds: int) -> bytes:
    """Returns a WAV file of silence."""
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8_000)
        file.writeframes(bytes(8_000 * seconds))
    return target.getvalue()


def both(account, model: str):
    """Returns the vendor's client and the gateway's, each with its name of the model."""
    return [(vendor_client(), upstream(model)), (chat_client(account.key), model)]


@pytest.mark.parametrize("options", [
    {},
    {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]},
    {"language": "en", "prompt": "A hint.", "temperature": 0.5},
    {"response_format": "text"},
    {"response_format": "srt"},
    {"response_format": "vtt"},
], ids=["json", "verbose", "options", "text", "srt", "vtt"])
def test_a_transcription_is_the_vendors_own_and_costs_its_seconds(account, options):
    before = balance(account)
    own, found = [client.audio.transcriptions.create(model=model, file=("a.wav", wav(3)), **options)
                  for client, model in both(account, "beta-scribe")]
    assert found == own
    assert before - balance(account) == 3


@pytest.mark.parametrize("model", ["beta-scribe", "beta-scribe-tokens"])
def test_a_streamed_transcription_is_the_vendors_own(account, model):
    own, found = [[event.model_dump() for event in client.audio.transcriptions.create(
        model=name, file=("a.wav", wav(3)), stream=True)] for client, name in both(account, model)]
    assert found == own and found[-1]["type"] == "transcript.text.done"


def test_a_translation_is_the_vendors_own(account):
    own, found = [client.audio.translations.create(model=model, file=("a.wav", wav(2)))
                  for client, model in both(account, "beta-scribe")]
    assert found == own


@pytest.mark.parametrize("options", [
    {}, {"response_format": "wav", "speed": 2.0, "instructions": "Softly."}, {"stream_format": "sse"},
], ids=["mp3", "options", "events"])
def test_speech_is_the_vendors_own_and_costs_its_characters(account, options):
    before = balance(account)
    own, found = [client.audio.speech.create(model=model, input="Grüße", voice="alloy", **options).content
                  for client, model in both(account, "beta-voice")]
    assert found == own
    assert before - balance(account) == 5 * Decimal("0.15")


@pytest.mark.parametrize("options", [
    {}, {"n": 2, "size": "1536x1024", "quality": "high", "output_format": "webp", "background": "opaque"},
], ids=["one", "options"])
def test_images_are_the_vendors_own_and_cost_their_tokens(account, options):
    before = balance(account)
    own, found = [client.images.generate(model=model, prompt="A cat.", **options) for client, model in both(account, "beta-paint")]
    assert found == own
    usage = own.usage
    assert before - balance(account) == (usage.input_tokens * Decimal(50) + usage.output_tokens * Decimal(300)) / 1_000_000


def test_streamed_and_edited_images_are_the_vendors_own(account):
    for ask in [
        lambda client, model: client.images.generate(model=model, prompt="A cat.", stream=True, partial_images=2),
        lambda client, model: client.images.edit(model=model, prompt="A dog.", stream=True, image=[b"one", b"two"], mask=b"m"),
    ]:
        own, found = [[event.model_dump() for event in ask(client, model)] for client, model in both(account, "beta-paint")]
        assert found == own and found[-1]["type"].endswith(".completed")
    own, found = [client.images.edit(model=model, prompt="A dog.", image=b"one", n=2) for client, model in both(account, "beta-paint")]
    assert found == own


def test_a_refusal_of_a_form_keeps_the_vendors_words(account):
    faults = []
    for client, model in both(account, "beta-scribe"):
        with pytest.raises(openai.BadRequestError) as refused:
            client.audio.transcriptions.create(model=model, file=("a.wav", wav(1)), response_format="docx")
        faults.append((refused.value.param, refused.value.body["message"]))
    assert faults[0] == faults[1]
