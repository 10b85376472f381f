"""Tests that the official SDKs can read the vectors: the responses that clients must get and that vendors should send.

The tests serve each file to the SDK of its protocol, without a gateway.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

VECTORS = Path(__file__).parents[2] / "vectors"
PAIRS = {
    "chat-to-messages": ("chat", "messages"),
    "messages-to-chat": ("messages", "chat"),
    "chat-to-chat": ("chat", "chat"),
    "messages-to-messages": ("messages", "messages"),
}
# Vendors' streams with data that is not JSON: their own SDKs cannot read them, but the gateway must.
MORE_THAN_AN_SDK_BEARS = {
    "chat-to-messages/stream-unknown-event-and-block": "an unknown event whose data is no JSON",
    "messages-to-chat/stream-comments": "comments that something on the way wrapped as data",
}
ASKED = {"model": "public-model", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}


def answers(side: str) -> list:
    """Returns the response files of one side, each with its protocol."""
    found = []
    for pair, (surface, vendor) in PAIRS.items():
        protocol = surface if side == "client" else vendor
        for file in sorted((VECTORS / pair).glob(f"*/{side}_response.*")):
            found.append(pytest.param(protocol, file, id=f"{pair}/{file.parent.name}{file.suffix}"))
    return found


def text_of(file: Path) -> str:
    """Returns a vector's text. Replaces a star by 1 where it stands for any number of tokens; other stars remain."""
    return re.sub(r'("\w+_tokens"\s*:\s*)"\*"', r"\g<1>1", file.read_text())


def is_broken_off(file: Path) -> bool:
    return (file.parent / "client_failure.json").exists()


class Shelf(ThreadingHTTPServer):
    """A server that answers every request with the file that `put` set last."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reader)
        self.body = b""
        self.content_type = ""

    def put(self, file: Path) -> None:
        self.body = text_of(file).encode()
        self.content_type = "text/event-stream; charset=utf-8" if file.suffix == ".sse" else "application/json"


class Reader(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", self.server.content_type)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def shelf():
    server = Shelf()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def clients(shelf) -> dict:
    url = f"http://127.0.0.1:{shelf.server_port}"
    options = {"api_key": "none", "max_retries": 0, "http_client": httpx2.Client(trust_env=False)}
    return {
        "chat": openai.OpenAI(base_url=f"{url}/v1", **options),
        "messages": anthropic.Anthropic(base_url=url, **options),
    }


def whole(clients, protocol: str):
    api = clients["chat"].chat.completions if protocol == "chat" else clients["messages"].messages
    return api.create(**ASKED)


def pieces(clients, protocol: str) -> list:
    api = clients["chat"].chat.completions if protocol == "chat" else clients["messages"].messages
    with api.create(**ASKED, stream=True) as stream:
        return list(stream)


def accumulated(clients, protocol: str):
    """Returns the response that the SDK's own helper builds from a stream."""
    if protocol == "messages":
        with clients["messages"].messages.stream(**ASKED) as stream:
            return stream.get_final_message()
    with clients["chat"].chat.completions.stream(**ASKED) as stream:
        *_, last = (event for event in stream if event.type == "chunk")
        return last.snapshot


@pytest.mark.parametrize(("protocol", "file"), answers("client"))
def test_what_a_client_must_get_is_read_by_its_sdk(shelf, clients, protocol, file):
    shelf.put(file)
    if file.suffix == ".json":
        answer = whole(clients, protocol)
        assert answer.to_dict() == json.loads(text_of(file))
        {"chat": ChatCompletion, "messages": Message}[protocol].model_validate(answer.to_dict())
        return
    events = pieces(clients, protocol)
    assert events or is_broken_off(file)
    if protocol == "chat":
        for chunk in events:
            if "custom" not in json.dumps(chunk.to_dict()):  # the SDK has no type for a custom call in a stream
                ChatCompletionChunk.model_validate(chunk.to_dict())
    if is_broken_off(file):
        return  # the edge writes the last frame, so the file does not have it
    final = accumulated(clients, protocol)
    if protocol == "chat":
        assert final.choices[0].finish_reason
        assert final.choices[0].message.role == "assistant"
    else:
        assert final.stop_reason
        assert events[-1].type == "message_stop"
        Message.model_validate(final.to_dict())


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=f"{file.parent.parent.name}/{file.parent.name}")
     for file in sorted(VECTORS.glob("responses-to-*/*/client_response.*"))],
)
def test_what_a_client_of_responses_must_get_is_read_by_its_sdk(shelf, clients, file):
    shelf.put(file)
    api = clients["chat"].responses
    if file.suffix == ".json":
        answer = api.create(model="public-model", input="Hi")
        assert answer.to_dict() == json.loads(text_of(file))
        Response.model_validate(answer.to_dict())
        return
    events = list(api.create(model="public-model", input="Hi", stream=True))
    with api.stream(model="public-model", input="Hi") as stream:
        helped = list(stream)
    last = events[-1].response
    Response.model_validate(last.to_dict())
    # The helper puts its parsed fields beside the items.
    known = [(item.type, item.id) for item in helped[-1].response.output]
    assert known == [(item.type, item.id) for item in last.output] and helped[-1].type == events[-1].type
    if last.status == "completed":
        with api.stream(model="public-model", input="Hi") as stream:
            assert stream.get_final_response().usage.to_dict() == last.usage.to_dict()


@pytest.mark.parametrize(("protocol", "file"), answers("vendor"))
def test_what_a_vendor_sends_is_read_by_its_own_sdk(shelf, clients, protocol, file):
    shelf.put(file)

    def read() -> None:
        if file.suffix == ".json":
            assert whole(clients, protocol).to_dict(warnings=False)
        else:
            assert pieces(clients, protocol)

    if f"{file.parent.parent.name}/{file.parent.name}" in MORE_THAN_AN_SDK_BEARS:
        with pytest.raises(json.JSONDecodeError):
            read()
        return
    try:
        read()
    except Exception:
        if not (is_broken_off(file) or re.search("garbage|broken", file.parent.name)):
            raise
