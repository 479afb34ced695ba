"""uvicorn's HTTP protocol with deadlines: slow or idle clients cannot hold the connections that others need.

uvicorn limits how long a connection may idle between two requests, but not how slowly a request may arrive: 1,100
connections that never finish their headers keep everyone else out.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0  # from the connection, or the first byte of a later request, to the end of the headers
BODY_SECONDS = 60.0  # between two pieces of a body
MOST_CONNECTIONS = 800  # below the usual limit of 1,024 open files
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class DeadlineProtocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    _deadline_is_for: object = None  # the state of the client that the deadline is about

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Start the deadline of the first request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.write(_FULL)
            transport.close()
        else:
            self._start(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Pass on the data; start the deadline of what must arrive next."""
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY or (state is h11.IDLE and self._deadline_is_for is not h11.IDLE):
            self._start(state)
        elif state not in (h11.IDLE, h11.SEND_BODY):
            self._cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._cancel()
        super().connection_lost(exc)

    def _start(self, state: object) -> None:
        self._cancel()
        self._deadline_is_for = state
        seconds = HEADER_SECONDS if state is h11.IDLE else BODY_SECONDS
        self._deadline = self.loop.call_later(seconds, self._close_if_late)

    def _cancel(self) -> None:
        self._deadline_is_for = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_if_late(self) -> None:
        if self.conn.their_state is h11.SEND_BODY and self.flow.read_paused:
            self._start(h11.SEND_BODY)  # we are the slow side: the body waits for a disk or a database
        elif self.conn.their_state is self._deadline_is_for and not self.transport.is_closing():
            self.transport.abort()
