"""The codec: what goes in comes out."""

from datetime import UTC, datetime
from typing import Any

import pytest

from services.sandbox import wire
from services.sandbox.faults import Act, Fault, Instant, InstantStyle, Moment, Reply
from services.sandbox.log import Ending, LoggedRequest, Vendor
from services.sandbox.outbox import Delivery, Plan, Sender

NOW = datetime(2026, 3, 10, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (
            Fault,
            Fault(
                Vendor.STRIPE,
                Act.ANSWER,
                Moment.AFTER,
                Reply(429, {"a": "b", "c": Instant(InstantStyle.HTTP_DATE, 1.5)}, "é", saved=False),
                path="^/v1",
                times=None,
            ),
        ),
        (Plan, Plan(("evt_1",), ("we_1",), 2, True, 7, 5, -3, ("s",), "2020-08-27")),
        (
            LoggedRequest,
            LoggedRequest(
                3,
                Vendor.GITHUB,
                "PUT",
                "/a%2Fb",
                "q=1",
                {"user-agent": "u"},
                2,
                "ff",
                {"a": [1]},
                NOW,
                None,
                Ending.PENDING,
                None,
                "fault-1",
                None,
                "octocat",
                (1, 2),
            ),
        ),
        (Delivery, Delivery(1, Sender.CLERK, "ep", "msg", "user.created", "http://x", 2, NOW, NOW, None, "", "gone")),
        (wire.AddToken, wire.AddToken("s", "l", ("o/r",))),
        (list[wire.Mail], [wire.Mail("a@x", ("b@x",), "<1>", "s", "t", "aGk=")]),
    ],
)
def test_round_trips(shape: Any, value: object) -> None:
    assert wire.decode(shape, wire.encode(value)) == value


def test_a_mails_content_is_bytes() -> None:
    assert wire.Mail("a@x", ("b@x",), "<1>", "s", "t", "aGk=").content == b"hi"


def test_what_is_not_the_shape_is_a_value_error() -> None:
    for raw in (b"nope", b'{"vendor": "gitlab", "act": "drop"}', b"[]"):
        with pytest.raises(ValueError, match="validation error"):
            wire.decode(Fault, raw)
