"""Gives the tests access to the environment that tests/world/run.mjs starts: the gateway's address, accounts and
keys that the gateway's own commands create, official clients, and the requests that the simulated vendor recorded."""

import hashlib
import json
import os
import ssl
import subprocess
import time
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import anthropic
import httpx2
import openai


def _setting(name: str, how: str = "") -> str:
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set: start the suite by tests/world/run.mjs{how}")
    return value


def stripe_url() -> str:
    """Returns the address of the simulator that plays Stripe, and any vendor without TLS."""
    return _setting("GATEWAY_STRIPE_URL", " with GATEWAY_TEST_SHOP=stripe")


BASE_URL = _setting("GATEWAY_BASE_URL")
SIMULATOR_URL = _setting("GATEWAY_SIMULATOR_URL")
BINARY = _setting("MODEL_GATEWAY_BIN")

ALPHA = "alpha-haiku-4-5-20251001"  # its vendor speaks the messages protocol
BETA = "beta-5.2"  # its vendor speaks chat completions

# The catalog, and the models that each surface reaches. Every suite reads the same file.
_MODELS = json.loads((Path(__file__).parents[2] / "world/models.json").read_text())
MODELS: list[str] = _MODELS["catalog"]
# For the endpoints beyond chat.
METERED: dict[str, dict] = _MODELS["metered"]
REACHABLE: dict[str, list[str]] = _MODELS["reachable"]
PAIRS = [(surface, model) for surface, models in REACHABLE.items() for model in models]
# One model per vendor is enough for tests that depend only on the vendor's protocol.
TYPICAL_PAIRS = [(surface, model) for surface, model in PAIRS if model in (ALPHA, BETA)]


def protocol(model: str) -> str:
    """Returns the surface whose protocol the model's own vendor speaks."""
    return "messages" if model.startswith("alpha-") else "chat"


# Each surface with the models whose vendor speaks another protocol.
TRANSLATED_PAIRS = [(surface, model) for surface, model in PAIRS if surface != protocol(model)]

REQUEST_ID = r"req_[0-9a-f]{32}"


@dataclass(frozen=True)
class Account:
    account_id: str
    email: str
    key: str


def command(*args: str) -> dict:
    """Runs one of the gateway's commands and returns its JSON. The command reads its config from GATEWAY_CONFIG."""
    done = subprocess.run([BINARY, *args, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{args} ended with {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


def create_account(*, trial: bool = True) -> Account:
    email = f"{uuid.uuid4()}@example.com"
    account = command("account", "create", "--email", email, *([] if trial else ["--no-trial"]))
    key = command("key", "create", "--account", email, "--name", "tests")
    return Account(account["account_id"], email, key["key"])


def prompt(marker: str = "") -> str:
    """Returns a text that no other request contains. The marker controls how the simulated vendor responds."""
    return f"{uuid.uuid4()} [[sim {marker}]]" if marker else str(uuid.uuid4())


# Making one takes 30 ms of CPU time, and each test makes several clients.
TLS = ssl.create_default_context()


class Wire(httpx2.Client):
    """An HTTP client that records each attempt, so that a test can check what an SDK sent and received."""

    def __init__(self, *, without: str | None = None) -> None:
        hooks = {"request": [self._remember], "response": [self._remember_answer]}
        super().__init__(timeout=600, trust_env=False, verify=TLS, event_hooks=hooks)
        self.sent: list[httpx2.Request] = []
        self.answered: list[httpx2.Response] = []
        self._without = without

    def _remember(self, request: httpx2.Request) -> None:
        if self._without:
            request.headers.pop(self._without, None)
        self.sent.append(request)

    def _remember_answer(self, response: httpx2.Response) -> None:
        self.answered.append(response)

    @property
    def body(self) -> bytes:
        return self.sent[-1].read()


# How a client sends its key. "both": the user sets the gateway's header while the SDK still sends a
# vendor's key.
CHAT_AUTH = ["bearer", "x-api-key", "both"]
MESSAGES_AUTH = ["api_key", "auth_token", "x-api-key"]


def chat_client(key: str, auth: str = "bearer", **options) -> openai.OpenAI:
    # This SDK always sends an Authorization header; for "x-api-key", the transport removes it.
    wire = Wire(without="authorization" if auth == "x-api-key" else None)
    options = {"base_url": f"{BASE_URL}/v1", "http_client": wire, **options}
    if auth == "bearer":
        return openai.OpenAI(api_key=key, **options)
    return openai.OpenAI(api_key="not-a-gateway-key", default_headers={"x-api-key": key}, **options)


def messages_client(key: str, auth: str = "api_key", **options) -> anthropic.Anthropic:
    options = {"base_url": BASE_URL, "http_client": Wire(), **options}
    if auth == "x-api-key":
        return anthropic.Anthropic(auth_token=None, default_headers={"X-Api-Key": key}, **options)
    return anthropic.Anthropic(**{auth: key}, **options)


def attempts(client) -> int:
    """Returns the number of requests that the SDK has sent, including its own retries."""
    return len(client._client.sent)


def warnings(client) -> str | None:
    """Returns the gateway's list of changes to the client's last request, or None if it made none."""
    return client._client.answered[-1].headers.get("x-gateway-warnings")


_DIRECTLY = {"trust_env": False, "verify": TLS, "timeout": 60}


def get(path: str, key: str) -> httpx2.Response:
    return httpx2.get(BASE_URL + path, headers={"Authorization": f"Bearer {key}"}, **_DIRECTLY)


def credits(key: str) -> dict:
    answer = get("/v1/credits", key)
    assert answer.status_code == 200, answer.text
    return answer.json()


def settled_credits(key: str) -> dict:
    """Waits until the account has no open request, then returns its credits."""

    def nothing_held():
        now = credits(key)
        return now if Decimal(now["held"]) == 0 else None

    return eventually("every hold resolved", nothing_held)


def vendor_requests(text: str) -> list[dict]:
    """Returns the requests that contain this prompt, oldest first. The simulator keeps bodies of at most 64 KiB."""
    nonce = text.split(" ")[0]
    found = []
    for request in last_vendor_requests(64):
        if nonce in (request["body"] or ""):
            found.append({**request, "body": json.loads(request["body"])})
    return found


def last_vendor_requests(count: int) -> list[dict]:
    return httpx2.get(f"{SIMULATOR_URL}/_sim/requests?last={count}", **_DIRECTLY).json()


def passed_on(client, seen: dict) -> bool:
    """Returns whether the vendor got exactly the bytes that the SDK sent last, except for the model's upstream name."""
    sent = client._client.body
    public = json.loads(sent)["model"]
    expected = sent.replace(f'"model":"{public}"'.encode(), f'"model":"{seen["body"]["model"]}"'.encode())
    return seen["body_sha256"] == hashlib.sha256(expected).hexdigest()


def eventually(what: str, condition, seconds: float = 60):
    """Calls `condition` until it returns a true value, and returns that value."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
