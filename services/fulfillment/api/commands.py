"""What an operator types: deliver what is pending now, see what needs a look, send one purchase again."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol, TypeVar

import typer

from services.fulfillment.flow import operator
from services.fulfillment.flow.flush import FlushReport, Fulfillment
from services.fulfillment.flow.operator import Retriggered
from services.kernel.service import CommandLine

T = TypeVar("T")


class InProcess(Protocol):
    """Opens a process of this slice, does the work in it, closes it."""

    def __call__(self, line: CommandLine, work: Callable[[Fulfillment], Awaitable[T]]) -> T: ...


def make_commands(in_process: InProcess) -> typer.Typer:
    """``rowclaim flush``, ``rowclaim attention`` and ``rowclaim retrigger``."""
    app = typer.Typer()

    @app.command()
    def flush(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="Counts as JSON.")] = False,
    ) -> None:
        """Deliver what is pending, oldest first, until nothing is left or a vendor tells us to stop."""
        line: CommandLine = context.obj
        report = in_process(line, lambda fulfillment: fulfillment.flush())
        line.show(_flushed(report), as_json=as_json)

    @app.command()
    def attention(
        context: typer.Context,
        as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False,
    ) -> None:
        """List the purchases that need a person's look, newest attempt first; fifty at most."""
        line: CommandLine = context.obj
        line.show(in_process(line, operator.list_attention), as_json=as_json)

    @app.command()
    def retrigger(
        context: typer.Context,
        purchase: Annotated[int, typer.Argument(help="The purchase's id.")],
        force: Annotated[bool, typer.Option("--force", help="Also one in progress, delivered or taken back.")] = False,
        reason: Annotated[str | None, typer.Option("--reason", help="Why; kept. Needed to force.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="The outcome as JSON.")] = False,
    ) -> None:
        """Set one purchase back to pending, then flush. A closed gate stays closed: the answer says until when."""
        line: CommandLine = context.obj
        done = in_process(
            line,
            lambda fulfillment: operator.retrigger(fulfillment, purchase, actor=line.actor, reason=reason, force=force),
        )
        line.show(_retriggered(done), as_json=as_json)

    return app


def _flushed(report: FlushReport) -> dict[str, object]:
    return {"stopped": report.stopped, "closed_until": report.closed_until, **report.counts()}


def _retriggered(done: Retriggered) -> dict[str, object]:
    return {"purchase": done.purchase_id, "before": done.before, "after": done.after, **_flushed(done.report)}
