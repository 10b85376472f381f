"""Tests which errors the official SDKs raise, and how many attempts they make, if the vendor speaks the other protocol.

The rows hold for every pair of a surface and a vendor: the surface determines the shape of an error, whether the error
comes from the vendor or from the gateway.
"""

import anthropic
import openai
import pytest

import gateway
from gateway import PAIRS, TRANSLATED_PAIRS, TYPICAL_PAIRS, attempts, prompt, protocol, vendor_requests

INVALID, SERVER, API = "invalid_request_error", "server_error", "api_error"
TRIES, ONCE = 3, 1


# The name of the output limit on each surface.
LIMITS = {"chat": "max_completion_tokens", "messages": "max_tokens"}


class Asked:
    """A client of one surface, and the errors that its SDK raises."""

    def __init__(self, surface: str, key: str, **options) -> None:
        self.surface = surface
        open = {"chat": gateway.chat_client, "messages": gateway.messages_client}[surface]
        self.client = open(key, **options)
        self.error = {"chat": openai, "messages": anthropic}[surface]

    def create(self, model: str, text: str, stream: bool = False, **more):
        api = {"chat": lambda: self.client.chat.completions, "messages": lambda: self.client.messages}[self.surface]()
        request = {"model": model, "messages": [{"role": "user", "content": text}], LIMITS[self.surface]: 100, **more}
        return api.create(**request, stream=stream)

    def helper(self, model: str, text: str):
        """Reads the SDK's own accumulator to its end, and returns the result."""
        request = {"model": model, LIMITS[self.surface]: 100, "messages": [{"role": "user", "content": text}]}
        if self.surface == "chat":
            with self.client.chat.completions.stream(**request) as stream:
                return stream.get_final_completion()
        with self.client.messages.stream(**request) as stream:
            return stream.get_final_message()

    def fails(self, model: str, text: str, stream: bool = False, **more):
        with pytest.raises(self.error.APIError) as raised:
            self.create(model, text, stream, **more)
        return raised.value


def words(surface: str, error) -> tuple:
    """Checks the shape of an error and returns its type and code. The code is None if the error has none."""
    body = error.body
    if surface == "chat":
        assert set(body) == {"message", "type", "param", "code"}
        assert body["message"]
        return body["type"], body["code"]
    assert body["type"] == "error" and body["request_id"] == error.request_id
    told = body["error"]
    assert set(told) <= {"type", "message", "details"} and told["message"]
    return told["type"], (told.get("details") or {}).get("error_code")


# Marker: class, status, type and code of the chat SDK's error; the same for messages; the number of attempts. ANY: the gateway
# sets no code of its own, so the vendor's code may be there, or none.
ANY = object()
VENDOR = {
    "status=400": ("BadRequestError", 400, INVALID, ANY, "BadRequestError", 400, INVALID, ONCE),
    "status=400 error_body=context": (
        *("BadRequestError", 400, INVALID, "context_length_exceeded"),
        *("BadRequestError", 400, INVALID, ONCE),
    ),
    "status=400 error_body=policy error_type=content_policy_violation": (
        *("BadRequestError", 400, INVALID, "content_policy_violation"),
        *("BadRequestError", 400, INVALID, ONCE),
    ),
    "status=400 error_type=content_filter error_code=content_filter": (
        *("BadRequestError", 400, INVALID, "content_policy_violation"),
        *("BadRequestError", 400, INVALID, ONCE),
    ),
    "status=401": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, ONCE),
    "status=403": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, ONCE),
    "status=402": ("InternalServerError", 503, SERVER, "overloaded", "OverloadedError", 529, "overloaded_error", TRIES),
    "status=400 error_body=quota": (
        *("InternalServerError", 503, SERVER, "overloaded"),
        *("OverloadedError", 529, "overloaded_error", TRIES),
    ),
    "status=429 error_body=quota": (
        *("InternalServerError", 503, SERVER, "overloaded"),
        *("OverloadedError", 529, "overloaded_error", TRIES),
    ),
    "status=404": ("NotFoundError", 404, INVALID, "model_not_found", "NotFoundError", 404, "not_found_error", ONCE),
    "status=408": ("APIStatusError", 408, INVALID, ANY, "RequestTimeoutError", 408, INVALID, TRIES),
    "status=409": ("ConflictError", 409, INVALID, ANY, "ConflictError", 409, "conflict_error", TRIES),
    "status=413": ("APIStatusError", 413, INVALID, ANY, "ContentTooLargeError", 413, "request_too_large", ONCE),
    "status=422": ("UnprocessableEntityError", 422, INVALID, ANY, "BadRequestError", 400, INVALID, ONCE),
    "status=429": ("RateLimitError", 429, ANY, "rate_limit_exceeded", "RateLimitError", 429, "rate_limit_error", TRIES),
    "status=500": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, TRIES),
    "status=502": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, TRIES),
    "status=503": ("InternalServerError", 503, SERVER, "overloaded", "OverloadedError", 529, "overloaded_error", TRIES),
    "status=529": ("InternalServerError", 503, SERVER, "overloaded", "OverloadedError", 529, "overloaded_error", TRIES),
    "status=504": (
        *("InternalServerError", 504, SERVER, "upstream_timeout"),
        *("GatewayTimeoutError", 504, "timeout_error", TRIES),
    ),
    "status=524": (
        *("InternalServerError", 504, SERVER, "upstream_timeout"),
        *("GatewayTimeoutError", 504, "timeout_error", TRIES),
    ),
    "status=302": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, TRIES),
    "status=500 error_body=html": (
        *("InternalServerError", 502, SERVER, "upstream_error"),
        *("InternalServerError", 500, API, TRIES),
    ),
    "status=400 error_body=empty": ("BadRequestError", 400, INVALID, ANY, "BadRequestError", 400, INVALID, ONCE),
    "cut=headers": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, TRIES),
    "garbage=headers": ("InternalServerError", 502, SERVER, "upstream_error", "InternalServerError", 500, API, TRIES),
}


def expect(surface: str, row: tuple) -> tuple:
    *both, tries = row
    if surface == "chat":
        name, status, kind, code = both[:4]
    else:
        (name, status, kind), code = both[4:], ANY
    return name, status, kind, code, tries


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("marker", VENDOR)
@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_status_of_the_vendor(account, naps, surface, model, marker, streamed):
    name, status, kind, code, tries = expect(surface, VENDOR[marker])
    asked = Asked(surface, account.key)
    text = prompt(marker)
    error = asked.fails(model, text, streamed)
    assert type(error).__name__ == name
    assert error.status_code == status
    found_kind, found_code = words(surface, error)
    assert kind in (found_kind, ANY) and code in (found_code, ANY)
    assert attempts(asked.client) == tries
    assert len(naps) == tries - 1
    assert vendor_requests(text), "the fault is the vendor's"
    upstream = vendor_requests(text)[0]["body"]["model"]
    assert upstream not in error.response.text


@pytest.mark.parametrize(("surface", "model"), TRANSLATED_PAIRS)
def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for(account, surface, model):
    error = Asked(surface, account.key).fails(model, prompt("status=400 error_body=context"))
    if surface == "chat":
        assert (error.code, error.param) == ("context_length_exceeded", "messages")
        assert error.body["message"] == (
            "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens."
        )
    else:
        assert error.body["error"]["message"] == "prompt is too long: 210000 tokens > 128000 maximum"


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_vendors_secrets_are_not_told(account, surface, model):
    error = Asked(surface, account.key).fails(model, prompt("status=400 error_body=leak"))
    assert "sk-" not in error.response.text and "org-Sim" not in error.response.text


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_vendors_wait_is_kept_up_to_a_minute(account, naps, surface, model):
    for told, kept in [("2", 2), ("600", 60)]:
        naps.clear()
        asked = Asked(surface, account.key)
        error = asked.fails(model, prompt(f"status=429 retry_after={told}"))
        assert error.response.headers["retry-after"] == str(kept)
        assert naps == [kept, kept]


# Only the chat vendor has choices. Its own surface passes a response without choices through.
NO_ANSWERS = [
    *((*pair, marker) for pair in TYPICAL_PAIRS for marker in ("shape=error", "garbage=json", "finish=null")),
    ("messages", gateway.BETA, "shape=nochoices"),
]


@pytest.mark.parametrize(("surface", "model", "marker"), NO_ANSWERS)
def test_an_answer_that_is_none(account, naps, surface, model, marker):
    asked = Asked(surface, account.key)
    error = asked.fails(model, prompt(marker))
    assert isinstance(error, asked.error.InternalServerError)
    # Each vendor's usual error: the messages vendor's says that it is overloaded.
    is_busy = marker == "shape=error" and protocol(model) == "messages"
    assert error.status_code == {"chat": 503 if is_busy else 502, "messages": 529 if is_busy else 500}[surface]
    words(surface, error)
    assert attempts(asked.client) == TRIES


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_an_answer_that_came_whole_before_its_connection_broke_is_one(account, surface, model):
    answer = Asked(surface, account.key).create(model, prompt("text=One garbage=length"))
    assert (answer.choices[0].message.content if surface == "chat" else answer.content[0].text) == "One"


@pytest.mark.parametrize(("surface", "model"), TRANSLATED_PAIRS)
def test_a_stream_that_begins_with_an_error_has_a_status(account, naps, surface, model):
    rows = [
        ("error_event=0 status=529 error_type=overloaded_error error_code=overloaded", 503, 529),
        ("error_event=0 status=429 error_type=rate_limit_error error_code=rate_limit_exceeded", 429, 429),
        ("error_event=0 status=500 error_type=api_error error_code=server_error", 502, 500),
        ("garbage=sse", 502, 500),
        ("cut=0", 502, 500),
    ]
    for marker, chat, messages in rows:
        asked = Asked(surface, account.key)
        error = asked.fails(model, prompt(marker), True)
        assert error.status_code == {"chat": chat, "messages": messages}[surface]
        assert attempts(asked.client) == TRIES


# Errors that end a stream in progress: the code of a chat frame and the type of a messages frame.
FRAMES = {
    "error_event=8 error_type=overloaded_error error_code=overloaded": ("overloaded", "overloaded_error"),
    "error_event=8 error_type=rate_limit_error error_code=rate_limit_exceeded": (
        "rate_limit_exceeded",
        "rate_limit_error",
    ),
    "error_event=8 error_type=api_error error_code=server_error": ("upstream_error", "api_error"),
    "cut=8": ("upstream_closed", "api_error"),
    "cut=8 reset=1": ("upstream_closed", "api_error"),
    "cut=8 end=clean": ("upstream_closed", "api_error"),
    "nofinish=1": ("upstream_closed", "api_error"),
}


@pytest.mark.parametrize("marker", FRAMES)
@pytest.mark.parametrize(("surface", "model"), TRANSLATED_PAIRS)
def test_a_stream_that_breaks_off_raises_once(account, naps, surface, model, marker):
    code, kind = FRAMES[marker]
    text = prompt(f"events=8 {marker}")
    asked = Asked(surface, account.key)
    said = []
    with pytest.raises(asked.error.APIError) as raised:
        said.extend(asked.create(model, text, True))
    if surface == "chat":
        assert (raised.value.type, raised.value.code) == ("server_error", code)
        assert not any(choice.finish_reason for chunk in said for choice in chunk.choices)
    else:
        assert isinstance(raised.value, anthropic.APIStatusError)
        assert raised.value.body["error"]["type"] == kind
        assert raised.value.body["request_id"].startswith("req_")
        assert not {"message_delta", "message_stop"} & {event.type for event in said}
    assert said, "what came before the end was told"
    assert attempts(asked.client) == 1

    with pytest.raises(asked.error.APIError):
        asked.helper(model, text)
    assert attempts(asked.client) == 2
    assert naps == []


@pytest.mark.parametrize("marker", ["events=40 cut=20", "events=40 error_event=20", "events=40 nofinish=1"])
def test_an_answer_that_is_read_from_a_stream_and_breaks_off_is_an_error_with_a_status(account, naps, marker):
    """At a high output limit the gateway streams from the vendor; it has sent the client nothing before the failure."""
    asked = Asked("chat", account.key)
    error = asked.fails(gateway.ALPHA, prompt(marker), max_completion_tokens=20_000)
    assert isinstance(error, openai.InternalServerError)
    assert attempts(asked.client) == TRIES


# ---- The gateway's own errors: before it calls any vendor, with one attempt.


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("surface", "model"), PAIRS)
def test_an_account_without_credits_is_asked_once_to_pay(naps, surface, model, streamed):
    asked = Asked(surface, gateway.create_account(trial=False).key)
    text = prompt()
    error = asked.fails(model, text, streamed)
    assert error.status_code == 402
    if surface == "chat":
        assert words(surface, error) == ("insufficient_quota", "insufficient_credits")
    else:
        assert isinstance(error, anthropic.PaymentRequiredError)
        assert words(surface, error) == ("billing_error", "insufficient_credits")
    assert error.response.headers["x-should-retry"] == "false"
    assert attempts(asked.client) == 1
    assert vendor_requests(text) == []


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_revoked_key_is_refused_once(naps, surface, model):
    account = gateway.create_account()
    [key] = gateway.command("key", "list", "--account", account.email)
    gateway.command("key", "revoke", key["key_id"])
    asked = Asked(surface, account.key)
    error = asked.fails(model, prompt())
    assert isinstance(error, asked.error.AuthenticationError | asked.error.PermissionDeniedError)
    assert attempts(asked.client) == 1


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_suspended_account_is_refused_once(naps, surface, model):
    account = gateway.create_account()
    gateway.command("account", "suspend", account.email)
    asked = Asked(surface, account.key)
    error = asked.fails(model, prompt())
    assert isinstance(error, asked.error.PermissionDeniedError)
    kind, code = words(surface, error)
    assert (kind, code) == ({"chat": INVALID, "messages": "permission_error"}[surface], "account_suspended")
    assert attempts(asked.client) == 1


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_body_over_the_size_limit_is_refused_once(account, naps, surface, model):
    asked = Asked(surface, account.key)
    error = asked.fails(model, "x" * 34_000_000)
    assert error.status_code == 413
    assert words(surface, error)[0] == {"chat": INVALID, "messages": "request_too_large"}[surface]
    assert attempts(asked.client) == 1


def says(*parts: dict) -> list:
    return [{"role": "user", "content": list(parts)}]


PLAIN_HTTP = {"type": "image_url", "image_url": {"url": "http://a.example/b.png"}}
KEPT_FILE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}

# Requests without a counterpart: the request, the path that the message or `param` names, the chat code.
REFUSED = {
    "chat": [
        ({"n": 2}, "n", "unsupported_value"),
        ({"logprobs": True}, "logprobs", ANY),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities", ANY),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", ANY),
        ({"temperature": 3}, "temperature", ANY),
        ({"tool_choice": "required"}, "tool_choice", ANY),
        ({"max_completion_tokens": 0}, "max_completion_tokens", ANY),
        ({"web_search_options": {}}, "web_search_options", ANY),
        ({"messages": says(PLAIN_HTTP)}, "messages[0].content[0].image_url", ANY),
    ],
    "messages": [
        ({"extra_body": {"container": "container_1"}}, "container", None),
        ({"extra_body": {"inference_geo": "eu"}}, "inference_geo", None),
        ({"extra_body": {"mcp_servers": [{"type": "url", "name": "a"}]}}, "mcp_servers", None),
        ({"extra_body": {"temperature": 1.5}}, "temperature", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.enabled.budget_tokens", None),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0", None),
        ({"messages": says(KEPT_FILE)}, "messages.0.content.0.source.file_id", None),
    ],
}


REFUSED_ROWS = [
    pytest.param(surface, model, row, id=f"{surface}-{row[1]}")
    for surface, model in TRANSLATED_PAIRS
    if model in (gateway.ALPHA, gateway.BETA)
    for row in REFUSED[surface]
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("surface", "model", "row"), REFUSED_ROWS)
def test_what_has_no_counterpart_is_refused_once_and_for_nothing(account, naps, surface, model, row, streamed):
    members, path, code = row
    asked = Asked(surface, account.key)
    text = prompt()
    before = gateway.settled_credits(account.key)
    request = {"model": model, LIMITS[surface]: 100, "stream": streamed, "messages": [{"role": "user", "content": text}]}
    api = asked.client.chat.completions if surface == "chat" else asked.client.messages
    with pytest.raises(asked.error.BadRequestError) as raised:
        api.create(**{**request, **members})
    kind, found = words(surface, raised.value)
    assert kind == INVALID
    if surface == "chat":
        assert raised.value.param.startswith(path)
        assert code in (found, ANY)
    else:
        assert raised.value.body["error"]["message"].strip("`").startswith(path)
    assert attempts(asked.client) == 1
    assert vendor_requests(text) == []
    assert gateway.settled_credits(account.key) == before
