"""Every way GitHub is known to say no, or to say nothing useful, as replies a fault can play.

The published description documents few of them (403 and 422 on PUT, 404 on GET). The rest is known from GitHub's
guides and from bug reports of clients that met them; a client that was never shown them misfiles them.
"""

import json
from typing import Any, Final

from services.sandbox.faults import Instant, InstantStyle, Reply

DOCS: Final = "https://docs.github.com/rest"
PUT_DOCS: Final = f"{DOCS}/collaborators/collaborators#add-a-repository-collaborator"
SECONDARY_DOCS: Final = f"{DOCS}/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"
SECONDARY_MESSAGE: Final = (
    "You have exceeded a secondary rate limit. Please wait a few minutes before you try again. "
    "If you reach out to GitHub Support for help, please include the request ID."
)
WEB_DEVELOPER: Final = "https://developer.github.com"
JSON_TYPE: Final = {"content-type": "application/json; charset=utf-8"}
HTML_TYPE: Final = {"content-type": "text/html; charset=utf-8"}
UNICORN: Final = "<!DOCTYPE html><html><head><title>Unicorn! &middot; GitHub</title></head><body>:(</body></html>"


def basic_error(status: int, message: str, documentation_url: str = DOCS, **headers: str | Instant) -> Reply:
    """GitHub's plain error body under any status; header names with underscores for hyphens."""
    return Reply(
        status=status,
        headers=JSON_TYPE | {name.replace("_", "-"): value for name, value in headers.items()},
        body=json.dumps({"message": message, "documentation_url": documentation_url, "status": str(status)}),
    )


def validation_failed(*errors: dict[str, Any], documentation_url: str = PUT_DOCS) -> Reply:
    """422 with its list of errors."""
    return Reply(
        status=422,
        headers=JSON_TYPE,
        body=json.dumps(
            {
                "message": "Validation Failed",
                "errors": list(errors),
                "documentation_url": documentation_url,
                "status": "422",
            }
        ),
    )


def custom_validation_failed(message: str) -> Reply:
    """422 whose one error has code ``custom`` and only its message tells what is meant."""
    return validation_failed({"resource": "Repository", "code": "custom", "message": message})


def secondary_limit(retry_after_s: int = 60, *, status: int = 403) -> Reply:
    """Secondary limit, ``retry-after`` in seconds."""
    return basic_error(status, SECONDARY_MESSAGE, SECONDARY_DOCS, retry_after=str(retry_after_s))


def secondary_limit_until_date(retry_after_s: float = 60, *, status: int = 403) -> Reply:
    """Secondary limit, ``retry-after`` as an HTTP date."""
    return basic_error(
        status, SECONDARY_MESSAGE, SECONDARY_DOCS, retry_after=Instant(InstantStyle.HTTP_DATE, retry_after_s)
    )


def secondary_limit_in_words(*, status: int = 403, remaining: int | None = None) -> Reply:
    """Secondary limit that only the message reveals; optionally beside a primary budget that is far from used up."""
    headers = {} if remaining is None else {"x_ratelimit_remaining": str(remaining)}
    return basic_error(status, SECONDARY_MESSAGE, SECONDARY_DOCS, **headers)


def abuse_limit() -> Reply:
    """The older words for the same."""
    return basic_error(
        403,
        "You have triggered an abuse detection mechanism. Please wait a few minutes before you try again.",
        f"{DOCS}/overview/resources-in-the-rest-api#abuse-rate-limits",
    )


def bare_429() -> Reply:
    """429 with neither headers nor words."""
    return Reply(status=429, body="")


def primary_limit(reset_in_s: float = 60, *, status: int = 403, clock_skew_s: float = 0) -> Reply:
    """Primary limit: nothing left until ``x-ratelimit-reset``, by a vendor clock ``clock_skew_s`` ahead of ours."""
    return basic_error(
        status,
        "API rate limit exceeded for user ID 1.",
        f"{DOCS}/using-the-rest-api/rate-limits-for-the-rest-api",
        x_ratelimit_limit="5000",
        x_ratelimit_remaining="0",
        x_ratelimit_used="5000",
        x_ratelimit_reset=Instant(InstantStyle.EPOCH_S, clock_skew_s + reset_in_s),
        date=Instant(InstantStyle.HTTP_DATE, clock_skew_s),
    )


def bad_credentials() -> Reply:
    """401: the token is wrong or expired."""
    return basic_error(401, "Bad credentials")


def requires_authentication() -> Reply:
    """401: no token was sent."""
    return basic_error(401, "Requires authentication", PUT_DOCS)


def not_found(documentation_url: str = PUT_DOCS) -> Reply:
    """404: no such login, no such repository, or a token that may not know."""
    return basic_error(404, "Not Found", documentation_url)


def missing_user_agent() -> Reply:
    """403 in plain text: GitHub serves nobody who does not say who they are."""
    return Reply(
        status=403,
        headers=HTML_TYPE,
        body="\r\nRequest forbidden by administrative rules. Please make sure your request has a User-Agent header "
        f"({DOCS}/overview/resources-in-the-rest-api#user-agent-required). Check {WEB_DEVELOPER} for other "
        "possible causes.\r\n",
    )


def unsupported_api_version(version: str) -> Reply:
    """400: an API version GitHub does not (or no longer) speak."""
    return basic_error(
        400,
        f"{version} is not a supported version. Please check the documentation for supported versions.",
        f"{DOCS}/about-the-rest-api/api-versions",
    )


def problems_parsing_json() -> Reply:
    """400: the body is no JSON."""
    return basic_error(400, "Problems parsing JSON", PUT_DOCS)


def body_not_an_object() -> Reply:
    """400: the body is JSON, but no object."""
    return basic_error(400, "Body should be a JSON object", PUT_DOCS)


def not_accessible() -> Reply:
    """403: the token exists but was not given this permission."""
    return basic_error(403, "Resource not accessible by personal access token", PUT_DOCS)


def must_have_admin_rights() -> Reply:
    """403: the token's owner does not administer the repository."""
    return basic_error(403, "Must have admin rights to Repository.", PUT_DOCS)


def outside_collaborators_restricted() -> Reply:
    """403: the organisation lets only its owners invite."""
    return basic_error(
        403, "Only organization owners can add outside collaborators to repositories in this organization.", PUT_DOCS
    )


def permission_on_personal_repository() -> Reply:
    """422: ``permission`` was sent for a repository no organisation owns."""
    return custom_validation_failed(
        "You can only update permissions on organization-owned repositories and their forks"
    )


def member_role_is_higher(login: str, permission: str) -> Reply:
    """422: an organisation member already has more by being one."""
    return custom_validation_failed(f"Cannot assign {login} permission of {permission}")


def owner_cannot_be_collaborator() -> Reply:
    """422: the owner has access already."""
    return custom_validation_failed("Repository owner cannot be a collaborator")


def invitation_quota() -> Reply:
    """422: the repository's invitations of the last 24 hours are used up."""
    return custom_validation_failed(
        "You have exceeded the limit of 50 invitations per repository in a 24-hour period. Please try again later."
    )


def unknown_validation_failure(message: str = "User could not be added") -> Reply:
    """422 nobody documented."""
    return custom_validation_failed(message)


def moved(location: str, *, status: int = 301) -> Reply:
    """301, 307 or 308: the repository was renamed or transferred."""
    words = "Moved Permanently" if status in (301, 308) else "Temporary Redirect"
    return Reply(
        status=status,
        headers=JSON_TYPE | {"location": location},
        body=json.dumps(
            {
                "message": words,
                "url": location,
                "documentation_url": f"{DOCS}/guides/best-practices-for-using-the-rest-api#follow-redirects",
            }
        ),
    )


def html_error(status: int = 502) -> Reply:
    """An HTML page from the load balancer: 500, 502, 503, 504."""
    return Reply(status=status, headers=HTML_TYPE, body=UNICORN)


def conflict() -> Reply:
    """409."""
    return basic_error(409, "Conflict", PUT_DOCS)


def request_timeout() -> Reply:
    """408."""
    return basic_error(408, "Request Timeout")


def unreadable_body() -> Reply:
    """The true status over a body that stops in the middle of its JSON."""
    return Reply(headers=JSON_TYPE, body='{"id": 42, "node_id": "RI_kgDO", "repos')
