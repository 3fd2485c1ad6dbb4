"""The endpoint that documentation and tutorials write: FastAPI, ``construct_event``, one insert a request.

It runs under the same server, loop, parser and pool size as ours, and stores the same body with the same guarantee:
one row an event, answered after its commit. It is run as ``python -m bench.textbook DATABASE_URL PORT``.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, LiteralString

import asyncpg
import stripe
import uvicorn
from fastapi import FastAPI, Request, Response

from bench.load import SECRET

POOL_SIZE: Final = 16

TABLE: Final[LiteralString] = """
create table if not exists textbook_events (
  source text not null, event_id text not null, type text not null, payload text not null,
  received_at timestamptz not null default now(), state text not null default 'pending',
  primary key (source, event_id))"""

INSERT: Final[LiteralString] = """
insert into textbook_events (source, event_id, type, payload) values ('stripe', $1, $2, $3) on conflict do nothing"""


def make_app(database_url: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncpg.create_pool(database_url, min_size=POOL_SIZE, max_size=POOL_SIZE) as pool:
            await pool.execute(TABLE)
            app.state.pool = pool
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/webhooks/stripe", status_code=202)
    async def webhook(request: Request) -> Response:
        body = await request.body()
        try:
            event = stripe.Webhook.construct_event(body, request.headers["stripe-signature"], SECRET)
        except (ValueError, KeyError, stripe.SignatureVerificationError):
            return Response(status_code=400)
        await app.state.pool.execute(INSERT, event.id, event.type, body.decode())
        return Response(status_code=202)

    return app


if __name__ == "__main__":
    uvicorn.run(
        make_app(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
