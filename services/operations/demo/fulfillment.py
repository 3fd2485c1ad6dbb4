"""The story of fulfillment: some forty paid checkouts, and what can go wrong with them, each invited exactly once.

A buyer says at our checkout whom to invite and pays at the vendor's page; the vendor posts signed webhooks to our front
door; what happens then is looked at from outside, in the database and in the log of what reached GitHub.
"""

import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from services.operations.demo.stage import OPERATOR, Answer, Note, Stage, until
from services.operations.demo.verdict import Scene, Told
from services.sandbox.faults import Act, Fault, Reply
from services.sandbox.github.shapes import AccountType
from services.sandbox.log import InviteEffect, LoggedRequest, Vendor
from services.sandbox.outbox import Plan, Posting
from services.sandbox.stripe.buyer import Payment
from services.sandbox.wire import (
    AddAccount,
    AddFault,
    CompleteSession,
    CreateSession,
    DeleteAccount,
    DeliverStripe,
    ListStripeEvents,
    RefundCharge,
    SetPosting,
    SettleSession,
)

SETTLED_WITHIN_S: Final = 30.0
RETRY_AFTER_S: Final = 2
INVITED: Final = {effect.value for effect in InviteEffect if effect.told}
"""Whatever told the person something: an invitation that is open already and sent again counts as well."""
EVENTS: Final = (
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    "checkout.session.async_payment_failed",
)

STATES: Final[LiteralString] = """
select stripe_session_id, fulfillment_state from purchases where stripe_session_id = any($1::text[])"""
PURCHASE: Final[LiteralString] = """
select id, fulfillment_state, claimed_by, revoked_at from purchases where stripe_session_id = $1"""
BY_STATE: Final[LiteralString] = """
select fulfillment_state as state, count(*) as purchases from purchases group by 1"""
REASONS: Final[LiteralString] = """
select coalesce(github_handle, '-') as login, fulfillment_last_code as code
from purchases where fulfillment_state = 'failed'"""
OPEN_DELIVERIES: Final[LiteralString] = """
select count(*) from webhook_deliveries where state in ('pending', 'in_progress')"""
UNDONE: Final[LiteralString] = """
select e.external_id, d.state, coalesce(d.parked_reason, '') as why
from webhook_deliveries d join event_ids e on e.id = d.event_id
where d.state in ('parked', 'not_ours') order by d.state"""
EVENTS_STORED: Final[LiteralString] = """
select count(*) from event_ids"""
GATE: Final[LiteralString] = """
select closed_until from vendor_gates where vendor = 'github' and closed_until > rowclaim_now()"""
ACTIONS: Final[LiteralString] = """
select verb, reason from admin_actions order by id"""


class FulfillmentStory:
    """Plays the scenes in order; figures and checks are read when everything has come to rest."""

    name = "fulfillment"

    def __init__(self, stage: Stage, note: Note) -> None:
        self.stage = stage
        self.note = note
        self.told = Told(self.name)
        self.sold: list[str] = []
        self.refusal: LoggedRequest | None = None
        self.forced = ""

    async def play(self) -> Told:
        """The whole story."""
        await self._scene("buyers pay, one by one", self.ordinary())
        await self._scene("each event thrice, twice at once", self.repeated())
        await self._scene("debits out of order, one bounced", self.out_of_order())
        await self._scene("no such user, organisation: no sale", self.refused_before_paying())
        await self._scene("accounts gone after paying, or none", self.cannot_be_invited())
        await self._scene("a buyer names an account later", self.corrected())
        await self._scene("a payment without an owner", self.nobodys())
        await self._scene("refunded after the invitation", self.refunded())
        await self._scene("another slice's, and unmarked", self.not_ours())
        await self._scene(f"GitHub: 403, Retry-After {RETRY_AFTER_S}", self.rate_limited())
        await self._scene("consumer SIGKILLed, then force", self.killed())
        await self._scene("broker SIGKILLed and wiped", self.broker_wiped())
        self.note("waiting until nothing is left to do")
        await until(self._at_rest, within_s=SETTLED_WITHIN_S, what="every delivery worked off")
        await self.read_the_end()
        return self.told

    async def _scene(self, title: str, scene: Coroutine[Any, Any, tuple[int, str]]) -> None:
        self.note(title)
        started = time.monotonic()
        purchases, came_of_it = await scene
        self.told.scenes.append(Scene(title, purchases, came_of_it, time.monotonic() - started))

    # ------------------------------------------------------------------------------------------------------ the scenes
    async def ordinary(self) -> tuple[int, str]:
        sessions = [await self.buy(await self.person(f"buyer{number:02}")) for number in range(14)]
        return len(sessions), await self.came_of(sessions)

    async def repeated(self) -> tuple[int, str]:
        await self.hold()
        sessions = [await self.buy(await self.person(f"again{number}")) for number in range(6)]
        events = await self.events_of(sessions)
        await self.deliver(Plan(events, copies=2, simultaneous=True))
        await self.deliver(Plan(events, shuffle_seed=7))
        await self.release()
        return len(sessions), await self.came_of(sessions)

    async def out_of_order(self) -> tuple[int, str]:
        await self.hold()
        kept = [await self.buy(await self.person(f"debit{number}"), Payment.UNPAID) for number in range(4)]
        broken = [await self.buy(await self.person("bounced"), Payment.UNPAID)]
        for session in kept:
            await self.stage.control.do(SettleSession(session, succeeded=True))
        for session in broken:
            await self.stage.control.do(SettleSession(session, succeeded=False))
        self.sold = [session for session in self.sold if session not in broken]
        newest_first = tuple(reversed(await self.events_of([*kept, *broken])))
        await self.deliver(Plan(newest_first))
        await self.release()
        return len(kept), await self.came_of(kept) + ", 1 owed nothing"

    async def refused_before_paying(self) -> tuple[int, str]:
        await self.stage.control.do(AddAccount("initech", AccountType.ORGANIZATION))
        said = [await self.checks_out("user_early", login) for login in ("no-such-person", "initech")]
        codes = {(answer.status, answer.body.get("code")) for answer in said}
        self.told.check("who cannot be invited is told before paying", codes, {(400, "github_handle_unknown")})
        return 0, "2 told before paying"

    async def cannot_be_invited(self) -> tuple[int, str]:
        await self.hold()
        sessions = [await self.buy(await self.person(f"gone{number}")) for number in range(2)]
        for number in range(2):
            await self.stage.control.do(DeleteAccount(f"gone{number}"))
        sessions += [await self.buy(None), await self.buy(await self.person("innocent"))]
        await self.release()
        await self.deliver(Plan(await self.events_of(sessions)))
        return len(sessions), await self.came_of(sessions)

    async def corrected(self) -> tuple[int, str]:
        session = await self.buy(None, user="user_late")
        before = await self.came_of([session])
        body = {"purchaseId": (await self.purchase(session))["id"], "githubUsername": await self.person("latecomer")}
        answer = await self.stage.call("user_late", "POST", "/fulfillment/requeue", body)
        shown = [one["state"] for one in answer.body.get("purchases", [])]
        self.told.check("the answer to a correction shows the delivery", shown, ["delivered"])
        return 1, f"{before}, then {await self.came_of([session])}"

    async def nobodys(self) -> tuple[int, str]:
        """Sold outside our checkout, so without an owner; its buyer's account is gone. A person sees it, finds out
        whose it is, and sends it again."""
        await self.hold()
        login = await self.person("walk-in")
        session = await self.sell_elsewhere(login, mark="fulfillment", owner=None)
        self.sold.append(session)
        await self.stage.control.do(DeleteAccount(login))
        await self.release()
        await self.deliver(Plan(await self.events_of([session])))
        before = await self.came_of([session])
        listed = (await self.stage.call(OPERATOR, "GET", "/admin/fulfillments/attention")).body["purchases"]
        purchase = (await self.purchase(session))["id"]
        mine = next(one for one in listed if one["id"] == purchase)
        await self.person(login)
        why = {"userId": "user_walk_in", "reason": "showed the receipt"}
        await self.stage.call(OPERATOR, "POST", f"/admin/purchases/{purchase}/link", why)
        sent = await self.stage.call(OPERATOR, "POST", "/admin/users/user_walk_in/fulfillment/retrigger", {})
        self.told.check("it could not be sent before it had an owner", mine["canResend"], False)
        self.told.check("it was sent once it had one", sent.status, 200)
        return 1, f"{before}, linked, then {await self.came_of([session])}"

    async def refunded(self) -> tuple[int, str]:
        session = await self.buy(await self.person("returned"))
        came = await self.came_of([session])
        await self.stage.control.do(RefundCharge(session))
        await until(lambda: self._revoked(session), within_s=SETTLED_WITHIN_S, what="the refund seen")
        return 1, f"{came}, listed, nothing taken away"

    async def not_ours(self) -> tuple[int, str]:
        await self.sell_elsewhere(await self.person("elsewhere"), mark="rewards", owner="user_elsewhere")
        await self.sell_elsewhere(await self.person("unmarked"), mark=None, owner="user_unmarked")
        return 0, "left alone, and shown"

    async def rate_limited(self) -> tuple[int, str]:
        refuse = Fault(
            Vendor.GITHUB,
            Act.ANSWER,
            method="PUT",
            reply=Reply(
                403,
                {"retry-after": str(RETRY_AFTER_S), "content-type": "application/json"},
                '{"message": "You have exceeded a secondary rate limit.", "documentation_url": "https://docs.github.com/"}',
            ),
        )
        await self.stage.control.do(AddFault(refuse))
        sessions = [await self.buy(await self.person(f"patient{number}")) for number in range(3)]
        await until(self._gate_closed, within_s=SETTLED_WITHIN_S, what="the gate of GitHub closed")
        self.refusal = next(put for put in await self.puts() if put.status == 403)
        await until(self._gate_open, within_s=RETRY_AFTER_S + SETTLED_WITHIN_S, what="the gate of GitHub open again")
        sessions.append(await self.buy(await self.person("patient3")))
        return len(sessions), await self.came_of(sessions)

    async def killed(self) -> tuple[int, str]:
        login = await self.person("stranded")
        await self.stage.control.do(AddFault(Fault(Vendor.GITHUB, Act.HANG, method="PUT", login=login)))
        session = await self.buy(login)
        await until(lambda: self._calling(login), within_s=SETTLED_WITHIN_S, what="GitHub called, not answering")
        purchase = await self.purchase(session)
        pid = int(purchase["claimed_by"].split(":")[1])
        whole = self.stage.whole
        victim = next(name for name, process in whole.processes.items() if process.pid == pid)
        whole.processes[victim].kill()
        other = await self.buy(await self.person("bystander"))
        await whole.start_consumer(victim)
        await self.came_of([other])
        stranded = str(purchase["id"])
        in_sight = (await self.purchase(session))["fulfillment_state"]
        refused = (await whole.end_of("retrigger", stranded)).exit_code
        await whole.run("retrigger", stranded, "--force", "--reason", "its consumer was killed")
        came = await self.came_of([session, other])
        self.told.check("the killed consumer's purchase stayed in sight", in_sight, "in_progress")
        self.told.check("without force it is refused", refused != 0, True)
        self.forced = login
        return 2, came

    async def broker_wiped(self) -> tuple[int, str]:
        self.stage.whole.stack.broker.kill()
        sessions = [await self.buy(await self.person(f"unrung{number}")) for number in range(3)]
        await self.stage.whole.stack.broker.start()
        await self.stage.whole.run("topics")
        sessions += [await self.buy(await self.person(f"unrung{number}")) for number in range(3, 6)]
        return len(sessions), await self.came_of(sessions)

    # --------------------------------------------------------------------------------------------------------- the end
    async def read_the_end(self) -> None:
        """Figures and checks, from the database and the vendors' log."""
        states = {row["state"]: row["purchases"] for row in await self.stage.database.fetch(BY_STATE)}
        reasons = {row["login"]: row["code"] for row in await self.stage.database.fetch(REASONS)}
        undone = [(row["state"], row["why"]) for row in await self.stage.database.fetch(UNDONE)]
        actions = [tuple(row) for row in await self.stage.database.fetch(ACTIONS)]
        stored = await self.stage.database.fetchval(EVENTS_STORED)
        invited = Counter(put.subject for put in await self.puts() if put.effect in INVITED)
        mails = await self.stage.control.mails()
        posted = await self.stage.control.deliveries()

        figures = self.told.figures = {
            "purchases": sum(states.values()),
            "delivered": states.get("delivered", 0),
            "failed": states.get("failed", 0),
            "in_progress": states.get("in_progress", 0),
            "invites_sent": invited.total(),
            "duplicate_invites": invited.total() - len(invited),
            "mails": len(mails),
            "events_received": stored,
            "events_duplicate": sum(one.taken for one in posted) - stored,
        }
        check = self.told.check
        check("one purchase a paid checkout", figures["purchases"], len(self.sold))
        check("nothing pending, nothing in progress", states.keys() - {"delivered", "failed"}, set())
        check(
            "failed for good, each with its reason",
            reasons,
            {
                "gone0": "no_such_account",
                "gone1": "no_such_account",
                "-": "no_handle",
            },
        )
        check("everybody else delivered", figures["delivered"], len(self.sold) - len(reasons))
        check("one invite each", figures["invites_sent"], figures["delivered"])
        check("no second invite", figures["duplicate_invites"], 0)
        check("one mail each", figures["mails"], figures["delivered"])
        check("no mail twice", len({mail.message_id for mail in mails}), len(mails))
        check("every webhook was answered 2xx", Counter(one.status for one in posted if not one.taken), Counter())
        check("every event stored once", stored, len({one.event_id for one in posted}))
        check("duplicates were sent", figures["events_duplicate"] > 0, True)
        check(
            "somebody else's left alone, the unmarked one shown",
            undone,
            [
                ("not_ours", ""),
                ("parked", "unmarked_object"),
            ],
        )
        check("no call while GitHub had asked to wait", await self.calls_too_early(), [])
        check("the forced purchase was invited once", invited[self.forced], 1)
        check(
            "who did what by hand and why is kept",
            actions,
            [
                ("fulfillment.link", "showed the receipt"),
                ("fulfillment.retrigger", "re-triggered"),
                ("fulfillment.force", "its consumer was killed"),
            ],
        )

    async def calls_too_early(self) -> list[str]:
        """Invites that arrived at GitHub between its refusal and the instant it named."""
        if self.refusal is None or self.refusal.ended_at is None:
            return ["no refusal was seen"]
        asked_until = self.refusal.ended_at + timedelta(seconds=RETRY_AFTER_S)
        return [
            f"{put.subject} {asked_until - put.arrived_at} early"
            for put in await self.puts()
            if self.refusal.seq < put.seq and put.arrived_at < asked_until
        ]

    # ----------------------------------------------------------------------------------------------- hands of the story
    async def person(self, login: str) -> str:
        """Somebody with a GitHub account."""
        return (await self.stage.control.do(AddAccount(login))).login

    async def buy(self, login: str | None, payment: Payment = Payment.PAID, *, user: str | None = None) -> str:
        """A purchase from our checkout to the paid page; the Session's id."""
        user = user or f"user_{login or 'without'}"
        answer = await self.checks_out(user, login)
        session = str(answer.body["id"])
        await self.stage.control.do(CompleteSession(session, payment, email=f"{user}@example.com"))
        self.sold.append(session)
        return session

    async def checks_out(self, user: str, login: str | None) -> Answer:
        """A user says at our checkout whom to invite."""
        return await self.stage.call(user, "POST", "/checkout/session", {"githubUsername": login})

    async def sell_elsewhere(self, login: str, *, mark: str | None, owner: str | None) -> str:
        """A checkout that our shop did not open, paid; the Session's id."""
        metadata = {"rowclaim_slice": mark, "github_username": login}
        params = {
            "mode": "payment",
            "success_url": "https://shop.example.com/thanks",
            "client_reference_id": owner,
            "customer_email": f"{login}@example.com",
            "metadata": {name: value for name, value in metadata.items() if value is not None},
            "line_items": [{"quantity": 1, "price": self.stage.whole.settings["ROWCLAIM_FULFILLMENT_CHECKOUT_PRICE"]}],
        }
        given = {name: value for name, value in params.items() if value is not None}
        session = await self.stage.control.do(CreateSession(given))
        await self.stage.control.do(CompleteSession(session["id"]))
        return str(session["id"])

    async def hold(self) -> None:
        await self.stage.control.do(SetPosting(self.stage.whole.stripe_endpoint, Posting.HELD))

    async def release(self) -> None:
        await self.stage.control.do(SetPosting(self.stage.whole.stripe_endpoint, Posting.AUTO))

    async def deliver(self, plan: Plan) -> None:
        await self.stage.control.do(DeliverStripe(plan))

    async def events_of(self, sessions: Iterable[str]) -> tuple[str, ...]:
        """The checkout events about these Sessions, oldest first."""
        wanted = set(sessions)
        events = await self.stage.control.do(ListStripeEvents())
        return tuple(
            event["id"] for event in events if event["type"] in EVENTS and event["data"]["object"]["id"] in wanted
        )

    async def puts(self) -> list[LoggedRequest]:
        return await self.stage.control.log(Vendor.GITHUB, method="PUT")

    async def purchase(self, session: str) -> Mapping[str, Any]:
        row = await self.stage.database.fetchrow(PURCHASE, session)
        return dict(row) if row is not None else {}

    async def came_of(self, sessions: list[str]) -> str:
        """Wait until each of these purchases is delivered or failed; the counts in words."""

        async def settled() -> Counter[str]:
            rows = await self.stage.database.fetch(STATES, sessions)
            states = Counter(str(row["fulfillment_state"]) for row in rows)
            return states if states["delivered"] + states["failed"] == len(sessions) else Counter()

        states = await until(settled, within_s=SETTLED_WITHIN_S, what=f"{len(sessions)} purchases settled")
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))

    async def _at_rest(self) -> bool:
        return bool(await self.stage.database.fetchval(OPEN_DELIVERIES) == 0)

    async def _revoked(self, session: str) -> bool:
        return bool((await self.purchase(session))["revoked_at"])

    async def _gate_closed(self) -> datetime | None:
        until_when: datetime | None = await self.stage.database.fetchval(GATE)
        return until_when

    async def _gate_open(self) -> bool:
        return await self._gate_closed() is None

    async def _calling(self, login: str) -> bool:
        return any(put.subject == login and put.ended_at is None for put in await self.puts())
