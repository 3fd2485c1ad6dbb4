"""Every parameter Stripe's library knows is either played or refused as not played; none is unknown to us or to it."""

from collections.abc import Mapping
from typing import Any

import pytest
from stripe import params as sdk
from stripe._request_options import RequestOptions
from stripe.params import _price_create_params as price_params
from stripe.params import checkout as sdk_checkout
from stripe.params.checkout import _session_create_params as session_params

from services.sandbox.stripe.params import Group, Many
from services.sandbox.stripe.registry import ROUTES, find_route
from services.sandbox.stripe.resources import checkout_sessions, prices

DECLARED: Mapping[tuple[str, str], Any] = {
    ("GET", "v1/charges/*"): sdk.ChargeRetrieveParams,
    ("GET", "v1/checkout/sessions"): sdk_checkout.SessionListParams,
    ("POST", "v1/checkout/sessions"): sdk_checkout.SessionCreateParams,
    ("GET", "v1/checkout/sessions/*"): sdk_checkout.SessionRetrieveParams,
    ("POST", "v1/checkout/sessions/*/expire"): sdk_checkout.SessionExpireParams,
    ("GET", "v1/checkout/sessions/*/line_items"): sdk_checkout.SessionListLineItemsParams,
    ("GET", "v1/customers"): sdk.CustomerListParams,
    ("POST", "v1/customers"): sdk.CustomerCreateParams,
    ("GET", "v1/customers/*"): sdk.CustomerRetrieveParams,
    ("GET", "v1/events"): sdk.EventListParams,
    ("GET", "v1/events/*"): sdk.EventRetrieveParams,
    ("GET", "v1/payment_intents"): sdk.PaymentIntentListParams,
    ("GET", "v1/payment_intents/*"): sdk.PaymentIntentRetrieveParams,
    ("POST", "v1/prices"): sdk.PriceCreateParams,
    ("GET", "v1/prices/*"): sdk.PriceRetrieveParams,
    ("GET", "v1/products/*"): sdk.ProductRetrieveParams,
    ("GET", "v1/webhook_endpoints"): sdk.WebhookEndpointListParams,
    ("POST", "v1/webhook_endpoints"): sdk.WebhookEndpointCreateParams,
    ("GET", "v1/webhook_endpoints/*"): sdk.WebhookEndpointRetrieveParams,
    ("POST", "v1/webhook_endpoints/*"): sdk.WebhookEndpointModifyParams,
    ("DELETE", "v1/webhook_endpoints/*"): sdk.WebhookEndpointDeleteParams,
}
WITHOUT_PARAMETERS = {("GET", "v2/core/events/*")}


def names(declared: Any) -> set[str]:
    return set(declared.__annotations__) - set(RequestOptions.__annotations__)


def held(group: Group) -> set[str]:
    assert not group.kinds.keys() & group.elsewhere, "played, or not played"
    return set(group.kinds) | group.elsewhere


def test_every_route_is_held_against_a_declaration() -> None:
    routes = {(route.method, "/".join(route.pattern)) for route in ROUTES}
    assert routes == DECLARED.keys() | WITHOUT_PARAMETERS
    assert len(ROUTES) == len(routes), "no route twice"


@pytest.mark.parametrize(("method", "path"), DECLARED)
def test_parameters_are_those_of_the_library(method: str, path: str) -> None:
    found = find_route(method, tuple(path.replace("*", "id").split("/")))
    assert found is not None
    assert held(found[0].params) == names(DECLARED[method, path])


def inner(group: Group, *path: str) -> Group:
    for name in path:
        kind = group.kinds[name]
        kind = kind.kind if isinstance(kind, Many) else kind
        assert isinstance(kind, Group)
        group = kind
    return group


SESSION_CREATE = inner(next(route for route in checkout_sessions.ROUTES if route.method == "POST").params)
PRICE_CREATE = next(route for route in prices.ROUTES if route.method == "POST").params


@pytest.mark.parametrize(
    ("group", "declared"),
    [
        (inner(SESSION_CREATE, "line_items"), session_params.SessionCreateParamsLineItem),
        (inner(SESSION_CREATE, "line_items", "price_data"), session_params.SessionCreateParamsLineItemPriceData),
        (
            inner(SESSION_CREATE, "line_items", "price_data", "product_data"),
            session_params.SessionCreateParamsLineItemPriceDataProductData,
        ),
        (inner(SESSION_CREATE, "payment_intent_data"), session_params.SessionCreateParamsPaymentIntentData),
        (inner(PRICE_CREATE, "product_data"), price_params.PriceCreateParamsProductData),
    ],
)
def test_nested_parameters_are_those_of_the_library(group: Group, declared: Any) -> None:
    assert held(group) == set(declared.__annotations__)


def test_no_route_answers_another_path() -> None:
    assert find_route("GET", ("v1", "events", "")) is None
    assert find_route("PATCH", ("v1", "events")) is None
    assert find_route("GET", ("v1", "events", "a", "b")) is None
    found = find_route("POST", ("v1", "checkout", "sessions", "cs_1", "expire"))
    assert found is not None
    assert found[1] == ("cs_1",)
