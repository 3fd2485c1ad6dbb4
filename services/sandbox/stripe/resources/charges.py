"""Charges: the money of a paid Session, and how it is taken back. Made by a buyer's payment, read by everybody else."""

from typing import Any, Final

from services.sandbox.stripe.books import Books, Obj, new_id
from services.sandbox.stripe.params import EXPAND, Group
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.checkout_sessions import find_session
from services.sandbox.stripe.routes import Request, Route

EVIDENCE_S: Final = 9 * 24 * 3600
"""How long a shop has to answer a dispute."""
_EVIDENCE: Final = (
    "access_activity_log",
    "billing_address",
    "cancellation_policy",
    "cancellation_policy_disclosure",
    "cancellation_rebuttal",
    "customer_communication",
    "customer_email_address",
    "customer_name",
    "customer_purchase_ip",
    "customer_signature",
    "duplicate_charge_documentation",
    "duplicate_charge_explanation",
    "duplicate_charge_id",
    "product_description",
    "receipt",
    "refund_policy",
    "refund_policy_disclosure",
    "refund_refusal_explanation",
    "service_date",
    "service_documentation",
    "shipping_address",
    "shipping_carrier",
    "shipping_date",
    "shipping_documentation",
    "shipping_tracking_number",
    "uncategorized_file",
    "uncategorized_text",
)


def new_charge(books: Books, intent: Obj, details: Obj) -> Obj:
    """The charge of a payment that succeeds, and its event. ``details`` is the Session's ``customer_details``."""
    method = intent["payment_method_types"][0]
    charge_id = new_id("ch" if method == "card" else "py")
    charge = books.put(
        {
            "id": charge_id,
            "object": "charge",
            "amount": intent["amount"],
            "amount_captured": intent["amount"],
            "amount_refunded": 0,
            "application": None,
            "application_fee": None,
            "application_fee_amount": None,
            "balance_transaction": new_id("txn"),
            "billing_details": {
                "address": None,
                "email": details["email"],
                "name": details["name"],
                "phone": details["phone"],
                "tax_id": None,
            },
            "calculated_statement_descriptor": intent["statement_descriptor"],
            "captured": True,
            "created": books.clock.now_s(),
            "currency": intent["currency"],
            "customer": intent["customer"],
            "description": intent["description"],
            "disputed": False,
            "failure_balance_transaction": None,
            "failure_code": None,
            "failure_message": None,
            "fraud_details": {},
            "livemode": False,
            "metadata": dict(intent["metadata"]),
            "on_behalf_of": None,
            "outcome": {
                "advice_code": None,
                "network_advice_code": None,
                "network_decline_code": None,
                "network_status": "approved_by_network",
                "reason": None,
                "risk_level": "normal" if method == "card" else "not_assessed",
                "seller_message": "Payment complete.",
                "type": "authorized",
            },
            "paid": True,
            "payment_intent": intent["id"],
            "payment_method": intent["payment_method"],
            "payment_method_details": _method_details(method),
            "receipt_email": intent["receipt_email"],
            "receipt_number": None,
            "receipt_url": f"https://pay.stripe.com/receipts/payment/{charge_id}",
            "refunded": False,
            "review": None,
            "shipping": None,
            "source": None,
            "source_transfer": None,
            "statement_descriptor": intent["statement_descriptor"],
            "statement_descriptor_suffix": None,
            "status": "succeeded",
            "transfer_data": None,
            "transfer_group": None,
        }
    )
    books.emit("charge.succeeded", charge)
    return charge


def _method_details(method: str) -> Obj:
    if method != "card":
        return {
            "type": method,
            method: {
                "account_holder_type": "individual",
                "account_type": "checking",
                "bank_name": "STRIPE TEST BANK",
                "fingerprint": None,
                "last4": "6789",
                "mandate": None,
                "payment_reference": None,
                "routing_number": "110000000",
            },
        }
    return {
        "type": "card",
        "card": {
            "amount_authorized": None,
            "authorization_code": None,
            "brand": "visa",
            "checks": {"address_line1_check": None, "address_postal_code_check": None, "cvc_check": "pass"},
            "country": "US",
            "exp_month": 8,
            "exp_year": 2034,
            "fingerprint": None,
            "funding": "credit",
            "installments": None,
            "last4": "4242",
            "mandate": None,
            "network": "visa",
            "network_transaction_id": None,
            "regulated_status": "unregulated",
            "three_d_secure": None,
            "transaction_link_id": None,
            "wallet": None,
        },
    }


def find_charge(books: Books, session_id: str) -> Obj:
    """The charge of a Session. Raises StripeRefusal for one that is unknown or was not paid."""
    session = find_session(books, session_id)
    intent = books.table("payment_intent").get(session["payment_intent"] or "")
    if intent is None or intent["latest_charge"] is None:
        raise StripeRefusal(f"The Session {session_id} was not paid: there is no charge.")
    return books.get("charge", intent["latest_charge"])


def refund(books: Books, session_id: str, amount: int | None = None) -> Obj:
    """The shop gives back a Session's money, or ``amount`` of it, in the smallest unit; answers the charge.

    Raises StripeRefusal for more than is left, and for a charge that the buyer's bank holds.
    """
    charge = find_charge(books, session_id)
    left = charge["amount"] - charge["amount_refunded"]
    if charge["disputed"]:
        raise StripeRefusal(f"Charge {charge['id']} has been charged back; cannot issue a refund.", saved=True)
    if left == 0:
        raise StripeRefusal(
            f"Charge {charge['id']} has already been refunded.", code="charge_already_refunded", saved=True
        )
    if amount is not None and not 0 < amount <= left:
        raise StripeRefusal(
            f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left})", param="amount"
        )
    charge["amount_refunded"] += left if amount is None else amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount"]
    books.emit("charge.refunded", charge)
    return charge


def dispute(books: Books, session_id: str, reason: str = "fraudulent") -> Obj:
    """The buyer's bank asks for a Session's money back; answers the dispute. Raises StripeRefusal for a second one."""
    charge = find_charge(books, session_id)
    if charge["disputed"]:
        raise StripeRefusal(f"Charge {charge['id']} is disputed already.")
    charge["disputed"] = True
    made = books.put(
        {
            "id": new_id("du"),
            "object": "dispute",
            "amount": charge["amount"] - charge["amount_refunded"],
            "balance_transactions": [],
            "charge": charge["id"],
            "created": books.clock.now_s(),
            "currency": charge["currency"],
            "enhanced_eligibility_types": [],
            "evidence": dict.fromkeys(_EVIDENCE) | {"enhanced_evidence": {}},
            "evidence_details": {
                "due_by": books.clock.now_s() + EVIDENCE_S,
                "enhanced_eligibility": {},
                "has_evidence": False,
                "past_due": False,
                "submission_count": 0,
                "submission_method": "not_submitted",
            },
            "is_charge_refundable": False,
            "livemode": False,
            "metadata": {},
            "payment_intent": charge["payment_intent"],
            "reason": reason,
            "status": "needs_response",
        }
        | _disputed_method(charge["payment_method_details"])
    )
    books.emit("charge.dispute.created", made)
    return made


def _disputed_method(details: dict[str, Any]) -> Obj:
    if details["type"] != "card":
        return {}
    card = {"brand": "visa", "case_type": "chargeback", "network": "visa", "network_reason_code": "10.4"}
    return {"payment_method_details": {"card": card, "type": "card"}}


def _retrieve(request: Request) -> Obj:
    return request.books.get("charge", request.ids[0])


ROUTES: Final = (Route("GET", ("v1", "charges", "*"), _retrieve, Group({"expand": EXPAND})),)
