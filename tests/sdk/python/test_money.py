"""Tests what the account holder pays: a receipt shows every debit, and its lines add up to the amount."""

import itertools
from decimal import ROUND_CEILING, Decimal

import anthropic
import openai
import pytest

import gateway
from gateway import (
    ALPHA, BETA, PAIRS, TYPICAL_PAIRS, chat_client, command, eventually, get, messages_client, prompt, settled_credits,
)

MICRO = Decimal("0.000001")
CLASSES = {"input", "cache_read", "cache_write_5m", "cache_write_1h", "output"}


def receipt_of(request_id: str, key: str) -> dict:
    """Waits for a receipt. It is ready when the client has the last byte, or shortly after the client disconnects."""

    def settled():
        answer = get(f"/v1/receipts/{request_id}", key)
        if answer.status_code == 404 and answer.headers.get("retry-after"):
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()

    return eventually(f"a receipt for {request_id}", settled)


def recomputed(receipt: dict) -> Decimal:
    """Computes the cost from the receipt's own lines: exactly, and rounded up once at the end."""
    exact = Decimal(0)
    for line in receipt["lines"]:
        assert line["class"] in CLASSES, line
        credits = Decimal(line["tokens"]) * Decimal(line["price"]) / 1_000_000
        assert Decimal(line["credits"]) == credits, line
        assert Decimal(receipt["price"][line["class"]]) == Decimal(line["price"]), line
        exact += credits
    return exact.quantize(MICRO, rounding=ROUND_CEILING)


class Purse:
    """An account, with the receipts of the responses that it received."""

    def __init__(self) -> None:
        self.account = gateway.create_account()
        self.chat = chat_client(self.account.key, max_retries=0)
        self.messages = messages_client(self.account.key, max_retries=0)
        self.receipts: list[dict] = []

    def ask(self, surface: str, model: str, marker: str, streamed: bool) -> dict:
        ask = {"chat": self.ask_chat, "messages": self.ask_messages}[surface]
        return ask(model, marker, streamed)

    def ask_chat(self, model: str, marker: str, streamed: bool) -> dict:
        request = {"model": model, "max_completion_tokens": 500, "messages": [{"role": "user", "content": prompt(marker)}]}
        if streamed:
            stream = self.chat.chat.completions.create(**request, stream=True)
            for _ in stream:
                pass
            return self._receive(stream.response, streamed)
        return self._receive(self.chat.chat.completions.with_raw_response.create(**request), streamed)

    def ask_messages(self, model: str, marker: str, streamed: bool) -> dict:
        request = {"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": prompt(marker)}]}
        if streamed:
            stream = self.messages.messages.create(**request, stream=True)
            for _ in stream:
                pass
            return self._receive(stream.response, streamed)
        return self._receive(self.messages.messages.with_raw_response.create(**request), streamed)

    def _receive(self, response, streamed: bool) -> dict:
        receipt = receipt_of(response.headers["x-request-id"], self.account.key)
        assert receipt["request_id"] == response.headers["x-request-id"]
        assert receipt["outcome"] == "completed"
        assert receipt["estimated"] is False
        if not streamed:
            assert Decimal(response.headers["x-gateway-credits"]) == Decimal(receipt["credits"])
        self.receipts.append(receipt)
        return receipt


@pytest.fixture(scope="module")
def purse() -> Purse:
    return Purse()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("surface", "model"), PAIRS)
def test_a_receipt_recomputes(purse, surface, model, streamed):
    receipt = purse.ask(surface, model, "input=1237 output=89", streamed)
    assert (receipt["model"], receipt["surface"]) == (model, surface)
    assert receipt["usage"]["input"] == 1237
    assert receipt["usage"]["output"] == 89
    assert Decimal(receipt["credits"]) == recomputed(receipt) > 0
    assert receipt["key"] == f"{purse.account.key[:10]}…{purse.account.key[-4:]}"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_every_class_of_tokens_is_billed_at_its_own_price(purse, surface, model, streamed):
    tokens = {"input": 1001, "cache_read": 333, "output": 71}
    marker = "input=1001 cache_read=333 output=71 reasoning=40"
    if model == ALPHA:  # only its vendor charges for cache writes
        tokens |= {"cache_write_5m": 17, "cache_write_1h": 13}
        marker += " write_5m=17 write_1h=13"
    receipt = purse.ask(surface, model, marker, streamed)
    assert {line["class"]: line["tokens"] for line in receipt["lines"] if line["tokens"]} == tokens
    assert receipt["usage"]["reasoning"] == 40
    assert Decimal(receipt["credits"]) == recomputed(receipt)


def test_the_shipped_price_of_the_dearest_model(purse):
    receipt = purse.ask_messages("alpha-opus-4-7", "input=1000 output=100", False)
    assert Decimal(receipt["credits"]) == Decimal("0.75")  # 1000 × 500 + 100 × 2500, per million


def test_a_fraction_of_a_micro_credit_is_rounded_up_once(purse):
    receipt = purse.ask_chat(BETA, "input=1 cache_read=1 output=1", False)
    exact = sum(Decimal(line["credits"]) for line in receipt["lines"])
    assert exact == Decimal("0.0015925")  # 175 + 17.5 + 1400, per million
    assert Decimal(receipt["credits"]) == Decimal("0.001593")


@pytest.mark.parametrize("marker", ["usage=twice", "usage=every"])
@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_usage_that_is_reported_again_is_not_billed_again(purse, surface, model, marker):
    receipt = purse.ask(surface, model, f"input=700 output=30 {marker}", True)
    assert (receipt["usage"]["input"], receipt["usage"]["output"]) == (700, 30)


@pytest.mark.parametrize("marker", ["status=429", "status=500", "cut=headers", "events=8 error_event=5", "events=8 cut=5"])
@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_failed_request_costs_nothing(purse, surface, model, marker):
    before = settled_credits(purse.account.key)
    error = {"chat": openai.APIError, "messages": anthropic.APIError}[surface]
    for streamed in (False, True):
        if not streamed and "event" in marker:
            continue  # these failures happen only inside a stream
        with pytest.raises(error):
            purse.ask(surface, model, marker, streamed)
    assert settled_credits(purse.account.key) == before


@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_caller_that_leaves_pays_for_what_was_generated(purse, surface, model):
    limit = "max_completion_tokens" if surface == "chat" else "max_tokens"
    request = {"model": model, limit: 500, "stream": True}
    request["messages"] = [{"role": "user", "content": prompt("events=20 gap_ms=50 input=500 output=40")}]
    create = purse.chat.chat.completions.create if surface == "chat" else purse.messages.messages.create
    stream = create(**request)
    for _ in itertools.islice(stream, 3):
        pass
    stream.close()

    receipt = receipt_of(stream.response.headers["x-request-id"], purse.account.key)
    purse.receipts.append(receipt)
    assert receipt["outcome"] == "client_left"
    assert receipt["estimated"] is False, "the vendor was read on to its usage"
    assert (receipt["usage"]["input"], receipt["usage"]["output"]) == (500, 40)
    assert Decimal(receipt["credits"]) == recomputed(receipt)


def test_a_receipt_is_nobody_elses(purse):
    stranger = gateway.create_account()
    request_id = purse.receipts[0]["request_id"]
    assert get(f"/v1/receipts/{request_id}", stranger.key).status_code == 404


def test_the_balance_is_what_the_receipts_leave_of_the_grant(purse):
    """Must stay last in this file: it checks the sum of all that the tests before it paid."""
    now = settled_credits(purse.account.key)
    paid = sum(Decimal(receipt["credits"]) for receipt in purse.receipts)
    assert len(purse.receipts) >= 20
    assert Decimal(now["balance"]) == 300 - paid
    assert Decimal(now["available"]) == Decimal(now["balance"])
    assert now["trial"]["active"] is True
    assert Decimal(now["trial"]["credits_left"]) == Decimal(now["balance"])

    by_command = command("account", "show", purse.account.email)
    assert Decimal(by_command["balance"]) == Decimal(now["balance"])
    assert Decimal(by_command["held"]) == 0

    verified = command("ledger", "verify")
    assert verified["findings"] == []
    assert verified["debits"] >= len(purse.receipts)
