"""How a process writes its log: lines of JSON to stderr, whoever speaks."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import Processor

QUIET_LOGGERS: Final = ("aiokafka", "asyncio", "faststream", "httpcore", "httpx", "stripe", "uvicorn")
"""Below warning these tell of every connection and request, some with the whole address."""


def configure_logging(level: str, *, process: str, run: str | None) -> None:
    """All logs, the standard library's too, to stderr: lines of JSON, or for eyes where stderr is a terminal."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    terminal = sys.stderr.isatty()
    renderer: Processor = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    shown: list[Processor] = [] if terminal else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    handler.addFilter(OutageFilter("aiokafka"))
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.contextvars.bind_contextvars(process=process, **({"run": run} if run else {}))


class OutageFilter(logging.Filter):
    """Lets one line a message form and ``every_s`` seconds through from the loggers below ``name``.

    While its broker is away, aiokafka writes some seventy error lines a second for each consumer. Belongs on a handler:
    a logger's own filter does not see what its children say.
    """

    def __init__(
        self, name: str = "aiokafka", *, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name)
        self._every_s = every_s
        self._clock = clock
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True
        form = (record.name, str(record.msg))
        now = self._clock()
        last, dropped = self._last.get(form, (-self._every_s, 0))
        if now - last < self._every_s:
            self._last[form] = (last, dropped + 1)
            return False
        self._last[form] = (now, 0)
        if dropped:
            record.msg = f"{record.msg} ({dropped} like it were not written)"
        return True
