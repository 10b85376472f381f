"""Tests the shop with Stripe's own library: it reads what the simulated Stripe answers, and signs and checks webhooks, in both
directions."""

import queue
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
import stripe

import gateway
from gateway import BASE_URL, command

SECRET = "whsec_sdk"  # as tests/world/run.mjs has it

STRIPE_URL = gateway.stripe_url()


@pytest.fixture(scope="module")
def api() -> stripe.StripeClient:
    return stripe.StripeClient("sk_test_sdk", base_addresses={"api": STRIPE_URL}, max_network_retries=0)


def act(page: str, **form) -> dict | list:
    """Does what people do at Stripe, or takes the events."""
    answer = httpx2.post(f"{STRIPE_URL}/_sim/stripe/{page}", data=form, **gateway._DIRECTLY)
    assert answer.status_code == 200, answer.text
    return answer.json()


def session_params(**changes) -> dict:
    item = {"quantity": 1, "price_data": {"currency": "usd", "unit_amount": 1000, "product_data": {"name": "Credits"}}}
    return {"mode": "payment", "success_url": "https://shop.example/", "line_items": [item], "metadata": {"a": "b"}, **changes}


def test_the_library_creates_reads_pays_and_refunds_a_session(api):
    sessions = api.v1.checkout.sessions
    options = {"idempotency_key": str(uuid.uuid4())}
    made = sessions.create(session_params(), options)
    assert made.id == sessions.create(session_params(), options).id, "the same key"
    with pytest.raises(stripe.IdempotencyError):
        sessions.create(session_params(metadata={"a": "c"}), options)
    assert (made.status, made.payment_status, made.amount_total, made.metadata["a"]) == ("open", "unpaid", 1000, "b")
    payment = act("pay", session=made.id)["payment_intent"]
    paid = sessions.retrieve(made.id, {"expand": ["payment_intent.latest_charge"]})
    assert (paid.status, paid.payment_status, paid.payment_intent.id) == ("complete", "paid", payment)
    assert paid.payment_intent.latest_charge.amount_refunded == 0
    refund = api.v1.refunds.create({"payment_intent": payment, "amount": 400})
    assert (refund.status, refund.amount) == ("succeeded", 400)
    dispute = act("dispute", payment=payment, amount=600)["dispute"]
    found = api.v1.disputes.list({"payment_intent": payment})
    assert [(it.id, it.status) for it in found.auto_paging_iter()] == [(dispute, "needs_response")]
    with pytest.raises(stripe.InvalidRequestError) as refused:
        api.v1.refunds.create({"payment_intent": payment})
    assert refused.value.code == "charge_disputed"
    kinds = [event.type for event in api.v1.events.list({"limit": 5}).data]
    assert kinds[0] == "charge.dispute.funds_withdrawn", kinds


def saved_card(api) -> tuple[str, str, str]:
    """Customer, card and setup intent of a session of the mode setup."""
    setup = {"mode": "setup", "customer_creation": "always", "payment_method_types": ["card"], "success_url": "https://shop.example/"}
    made = api.v1.checkout.sessions.create(setup)
    assert (made.payment_status, made.amount_total, made.payment_intent) == ("no_payment_required", None, None)
    card = act("set_up", session=made.id)["payment_method"]
    done = api.v1.checkout.sessions.retrieve(made.id, {"expand": ["setup_intent.payment_method"]})
    assert (done.status, done.setup_intent.status, done.setup_intent.payment_method.id) == ("complete", "succeeded", card)
    assert done.setup_intent.payment_method.card.last4 == "4242"
    return done.customer, card, done.setup_intent.id


def test_the_library_charges_a_saved_card_gets_its_declines_and_removes_it(api):
    customer, card, _ = saved_card(api)
    charge = {"amount": 1000, "currency": "usd", "customer": customer, "payment_method": card, "off_session": True, "confirm": True}
    intents = api.v1.payment_intents
    paid = intents.create({**charge, "metadata": {"order": "o1"}, "expand": ["latest_charge"]}, {"idempotency_key": str(uuid.uuid4())})
    assert (paid.status, paid.amount_received) == ("succeeded", 1000)
    assert paid.latest_charge.receipt_url.startswith("https://pay.stripe.com/receipts/")
    listed = intents.list({"customer": customer, "created": {"gte": paid.created - 1, "lte": paid.created + 1}}).data
    assert [(it.id, it.metadata["order"]) for it in listed] == [(paid.id, "o1")]
    for reason, code in [("insufficient_funds", "card_declined"), ("authentication_required", "authentication_required")]:
        act("decline", payments=1, reason=reason)
        with pytest.raises(stripe.CardError) as declined:
            intents.create(charge)
        error = declined.value.error
        assert (declined.value.http_status, declined.value.code, error.decline_code) == (402, code, reason)
        assert intents.retrieve(error.payment_intent.id).status == "requires_payment_method"
    assert api.v1.payment_methods.detach(card).customer is None
    with pytest.raises(stripe.InvalidRequestError) as refused:
        intents.create(charge)
    assert refused.value.param == "payment_method"


def test_each_object_has_the_members_that_its_type_requires(api):
    made = api.v1.checkout.sessions.create(session_params())
    payment = act("pay", session=made.id)["payment_intent"]
    act("dispute", payment=payment, amount=100, status="warning_needs_response")
    api.v1.refunds.create({"payment_intent": payment, "amount": 100})
    customer, card, setup = saved_card(api)
    found = [api.v1.customers.retrieve(customer), api.v1.payment_methods.retrieve(card), api.v1.setup_intents.retrieve(setup)]
    found += [made, api.v1.payment_intents.retrieve(payment)]
    found += [api.v1.charges.list().data[0], api.v1.refunds.list().data[0], api.v1.disputes.list().data[0], api.v1.events.list().data[0]]
    kinds = ["customer", "payment_method", "setup_intent"]
    kinds += ["checkout.session", "payment_intent", "charge", "refund", "dispute", "event"]
    assert [it.object for it in found] == kinds
    for it in found:
        required = [name for name, form in type(it).__annotations__.items() if not re.search("Optional|None|ClassVar", str(form))]
        assert len(required) > 3 and [name for name in required if name not in it.to_dict()] == [], it.object


@pytest.mark.parametrize(
    "changes, param",
    [
        ({"colour": "red"}, "colour"),
        ({"mode": "gift"}, "mode"),
        ({"expires_at": 1}, "expires_at"),
        ({"success_url": "shop"}, "success_url"),
        ({"line_items": [{"quantity": 1}]}, "line_items[0][price_data][unit_amount]"),
    ],
)
def test_the_library_gets_the_error_of_a_wrong_parameter(api, changes, param):
    with pytest.raises(stripe.InvalidRequestError) as refused:
        api.v1.checkout.sessions.create(session_params(**changes))
    assert (refused.value.http_status, refused.value.param) == (400, param)


def test_the_library_gets_the_error_of_a_wrong_key_and_of_the_other_mode(api):
    made = api.v1.checkout.sessions.create(session_params())
    for key, error in [("sk_test_revoked1", stripe.AuthenticationError), ("sk_live_abc", stripe.InvalidRequestError)]:
        other = stripe.StripeClient(key, base_addresses={"api": STRIPE_URL})
        with pytest.raises(error):
            other.v1.checkout.sessions.retrieve(made.id)


@pytest.fixture(scope="module")
def holder() -> tuple[str, str]:
    """E-mail and cookie of an account holder."""
    email = f"{uuid.uuid4()}@example.com"
    form = {"email": email, "password": "a long password"}
    answer = httpx2.post(f"{BASE_URL}/dashboard/sign-up", data=form, **gateway._DIRECTLY)
    assert answer.status_code == 303, answer.text
    return email, answer.headers["set-cookie"].split(";")[0]


def order(holder, dollars: int) -> str:
    """Orders credits, and returns the id of the order."""
    headers = {"cookie": holder[1]}
    page = httpx2.get(f"{BASE_URL}/dashboard/credits", headers=headers, **gateway._DIRECTLY).text
    token = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)[1]
    form = {"csrf": token, "amount": str(dollars)}
    answer = httpx2.post(f"{BASE_URL}/dashboard/credits", data=form, headers=headers, **gateway._DIRECTLY)
    assert answer.status_code == 303, answer.text
    return re.search(r"order=(\w+)", answer.headers["location"])[1]


def deliver(body: str, signature: str) -> int:
    headers = {"stripe-signature": signature, "content-type": "application/json; charset=utf-8"}
    return httpx2.post(f"{BASE_URL}/webhooks/stripe", content=body, headers=headers, **gateway._DIRECTLY).status_code


def balance(holder) -> str:
    return command("account", "show", holder[0])["balance"]


def test_the_gateway_takes_what_the_library_signs_and_the_library_what_the_simulator_signs(api, holder):
    first = order(holder, 10)
    made = next(it for it in api.v1.checkout.sessions.list({"limit": 20}).data if it.client_reference_id == first)
    assert (made.amount_total, made.currency, made.mode) == (1000, "usd", "payment")
    assert made.expires_at > time.time() + 3600
    act("pay", session=made.id)
    events = act("deliveries", secret=SECRET)
    paid = next(it for it in events if it["type"] == "checkout.session.completed" and made.id in it["body"])
    # The simulator signs as Stripe does, for Stripe's library.
    event = stripe.Webhook.construct_event(paid["body"], paid["signature"], SECRET)
    assert event.data.object.id == made.id
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(paid["body"], paid["signature"], "whsec_of_another_endpoint")
    # The library signs for the gateway.
    before = balance(holder)
    sign = stripe.WebhookSignature.generate_signature_header
    assert deliver(paid["body"], sign(paid["body"], "whsec_of_another_endpoint")) == 400
    assert deliver(paid["body"], sign(paid["body"], SECRET, timestamp=int(time.time()) - 301)) == 400
    assert deliver(paid["body"] + " ", sign(paid["body"], SECRET)) == 400
    assert balance(holder) == before
    assert deliver(paid["body"], sign(paid["body"], SECRET)) == 200
    assert deliver(paid["body"], paid["signature"]) == 200, "the simulator's own, and the event again"
    assert float(balance(holder)) == float(before) + 1000


# It listens on the socket that it is given, and keeps nothing on the disk.
LOCALSTRIPE = """
import socket, sys
from aiohttp import web
from localstripe import resources, server
type(resources.store).dump_to_disk = lambda self: None
web.run_app(server.app, sock=socket.socket(fileno=int(sys.argv[1])), print=None)
"""


@pytest.fixture
def localstripe():
    """Posts a form to localstripe, a Stripe that others wrote. It has payment intents, and no Checkout sessions."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        args = [sys.executable, "-c", LOCALSTRIPE, str(listener.fileno())]
        process = subprocess.Popen(args, pass_fds=[listener.fileno()])

    def post(path: str, **form) -> dict:
        headers = {"authorization": "Bearer sk_test_sdk"}
        answer = httpx2.post(address + path, data=form, headers=headers, **gateway._DIRECTLY)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else {}

    yield post
    process.terminate()
    assert process.wait(60) == 0


@pytest.fixture
def passed_on():
    """The address of a webhook that passes events on to the gateway, and a queue of their types with the gateway's answers."""
    answers: queue.Queue = queue.Queue()

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            status = deliver(body, self.headers["stripe-signature"])
            answers.put((self.path, re.findall(r'"type": "(payment_intent[.a-z]+)"', body), status))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()


def test_the_gateway_takes_the_events_that_localstripe_signs_and_they_buy_nothing(localstripe, passed_on, holder):
    address, answers = passed_on
    kind = "payment_intent.succeeded"
    for path, secret in [("/ours", SECRET), ("/other", "whsec_of_another_endpoint")]:
        localstripe(f"/_config/webhooks{path}", url=address + path, secret=secret, **{"events[0]": kind})
    number = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2050, "cvc": "123"}
    card = localstripe("/v1/payment_methods", type="card", **{f"card[{name}]": it for name, it in number.items()})["id"]
    customer = localstripe("/v1/customers", email=holder[0])["id"]
    localstripe(f"/v1/payment_methods/{card}/attach", customer=customer)
    before, ordered = balance(holder), order(holder, 10)
    charge = {"amount": 1000, "currency": "usd", "customer": customer, "payment_method": card, "confirm": "true"}
    localstripe("/v1/payment_intents", **charge, **{"metadata[order]": ordered})
    # An event of a payment is not one of its checkout, whatever it names.
    assert sorted(answers.get(timeout=60) for _ in range(2)) == [("/other", [kind], 400), ("/ours", [kind], 200)]
    assert balance(holder) == before


def test_operators_find_refund_and_compare_payments_by_command_and_admin_api(api, holder):
    ordered = order(holder, 20)
    made = next(it for it in api.v1.checkout.sessions.list({"limit": 20}).data if it.client_reference_id == ordered)
    act("pay", session=made.id)
    for event in act("deliveries", secret=SECRET):
        if made.id in event["body"]:
            assert deliver(event["body"], event["signature"]) == 200
    root = command("account", "create", "--email", f"{uuid.uuid4()}@example.com", "--admin", "--no-trial")["account_id"]
    key = command("key", "create", "--account", root, "--name", "root")["key"]

    def admin(path: str, body: dict | None = None) -> tuple[int, dict]:
        url, headers = f"{gateway._setting('GATEWAY_ADMIN_URL')}/admin/v1{path}", {"authorization": f"Bearer {key}"}
        method = "POST" if body is not None else "GET"
        answer = httpx2.request(method, url, json=body, headers=headers, **gateway._DIRECTLY)
        return answer.status_code, answer.json()

    listed = command("payments", "list", "--account", holder[0], "--state", "paid")["payments"]
    assert listed[0]["payment_id"] == ordered and admin(f"/payments?account={holder[0]}&state=paid")[1]["payments"] == listed
    before = float(balance(holder))
    refund = {"amount": "5", "ref": "ticket 1"}
    assert [admin(f"/payments/{ordered}/refunds", refund)[0] for _ in range(2)] == [201, 200]
    assert not command("payments", "refund", ordered, "--amount", "5", "--ref", "ticket 1")["new"]
    shown = command("payments", "show", ordered)
    assert (shown["refunded"], float(balance(holder))) == ("5.00", before - 500)
    assert admin(f"/payments/{ordered}") == (200, shown)
    # Payments of the last hour are left for the next time.
    assert admin("/payments/reconcile", {"days": 1})[1]["differences"] == command("payments", "reconcile", "--days", "1")["differences"]
    # The texts of codes are printed once, as CSV.
    create = [gateway.BINARY, "codes", "create", "--credits", "50", "--count", "3", "--expires", "30d"]
    csv = subprocess.run(create, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
    codes = [line.split(",")[0] for line in csv[1:]]
    assert csv[0] == "code,credits,expires_at" and len(codes) == 3 and all(re.fullmatch("gw-code-[a-z0-9]+", it) for it in codes)
    batch = command("codes", "list")["batches"][0]
    assert (batch["count"], batch["redeemed"], batch["credits"]) == (3, 0, "50")
    assert command("codes", "void", codes[0]) == {"voided": 1}
    states = sorted(code["state"] for code in admin(f"/codes/{batch['batch']}")[1]["codes"])
    assert states == ["open", "open", "voided"] and admin(f"/codes/{batch['batch']}/void", {}) == (200, {"voided": 2})
