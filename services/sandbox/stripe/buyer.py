"""The person at the payment page: pays, promises to pay, keeps or breaks the promise, walks away."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from services.sandbox.stripe.books import Books, Obj, new_id
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.charges import new_charge
from services.sandbox.stripe.resources.checkout_sessions import expire_session, find_session
from services.sandbox.stripe.resources.customers import create_customer
from services.sandbox.stripe.resources.payment_intents import new_payment_intent

DEFAULT_EMAIL: Final = "buyer@example.com"


class Payment(StrEnum):
    """How a buyer completes a Session."""

    PAID = "paid"
    """By card: complete and paid at once."""
    UNPAID = "unpaid"
    """By bank debit: complete at once, unpaid for days, until ``settle``."""


@dataclass(frozen=True, slots=True)
class Buyer:
    """Acts on Sessions; every act emits the events Stripe would emit, in the order of the acts."""

    books: Books

    def complete(
        self, session_id: str, payment: Payment = Payment.PAID, *, email: str | None = None, name: str | None = None
    ) -> Obj:
        """Submit the payment page. Raises StripeRefusal for an unknown or no longer open Session."""
        books = self.books
        session = self._session(session_id, "open")
        email = email or session["customer_email"] or self._known_email(session) or DEFAULT_EMAIL
        if session["customer"] is None and session["customer_creation"] == "always":
            session["customer"] = create_customer(books, email=email, name=name)["id"]
        session |= {
            "status": "complete",
            "url": None,
            "client_secret": None,
            "customer_details": {
                "address": None,
                "business_name": None,
                "email": email,
                "individual_name": None,
                "name": name,
                "phone": None,
                "tax_exempt": "none",
                "tax_ids": [],
            },
        }
        if session["amount_total"] == 0:
            session["payment_status"] = "no_payment_required"
            books.emit("checkout.session.completed", session)
            return session
        method = "card" if payment is Payment.PAID else "us_bank_account"
        intent = new_payment_intent(books, session, dict(books.table("payment_intent_data")[session_id]), method)
        intent["payment_method"] = new_id("pm")
        session["payment_intent"] = intent["id"]
        books.emit("payment_intent.created", intent)
        if payment is Payment.PAID:
            self._succeed(intent, session)
            session["payment_status"] = "paid"
        else:
            intent["status"] = "processing"
            books.emit("payment_intent.processing", intent)
        books.emit("checkout.session.completed", session)
        return session

    def settle(self, session_id: str, *, succeeded: bool) -> Obj:
        """The bank decides about an unpaid Session. Raises StripeRefusal when nothing is pending."""
        books = self.books
        session = self._session(session_id, "complete")
        intent = books.get("payment_intent", session["payment_intent"] or "")
        if intent["status"] != "processing":
            raise StripeRefusal(f"The payment of {session_id} is {intent['status']}: nothing is left to settle.")
        if succeeded:
            self._succeed(intent, session)
            session["payment_status"] = "paid"
            books.emit("checkout.session.async_payment_succeeded", session)
        else:
            intent |= {
                "status": "requires_payment_method",
                "payment_method": None,
                "last_payment_error": {
                    "code": "payment_intent_payment_attempt_failed",
                    "doc_url": "https://docs.stripe.com/error-codes/payment-intent-payment-attempt-failed",
                    "message": "The customer's bank account has insufficient funds.",
                    "type": "invalid_request_error",
                },
            }
            books.emit("payment_intent.payment_failed", intent)
            books.emit("checkout.session.async_payment_failed", session)
        return session

    def leave(self, session_id: str) -> Obj:
        """Walk away until the Session expires. Raises StripeRefusal when it is not open."""
        return expire_session(self.books, self._session(session_id, "open"))

    def _succeed(self, intent: Obj, session: Obj) -> None:
        charge = new_charge(self.books, intent, session["customer_details"])
        intent |= {"status": "succeeded", "amount_received": intent["amount"], "latest_charge": charge["id"]}
        self.books.emit("payment_intent.succeeded", intent)

    def _session(self, session_id: str, status: str) -> Obj:
        session = find_session(self.books, session_id)
        if session["status"] != status:
            raise StripeRefusal(f"The Session {session_id} is {session['status']}, not {status}.")
        return session

    def _known_email(self, session: Obj) -> str | None:
        if session["customer"] is None:
            return None
        email: str | None = self.books.get("customer", session["customer"])["email"]
        return email
