"""The manager's loop: asyncio's, over an epoll of our own that calls some readers directly.

Knows: epoll, and the selector that asyncio expects. Must not know: the data.

A beat is one comparison. Through asyncio it would cost many times that: a key, a handle, a context,
one turn of the loop. So a reader can be given to the selector itself. It is called where epoll
reports, and the selector returns only if the reader has done something that the loop must follow up
(a timer, a callback, another descriptor). A request's answer waits for no turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any

Swallow = Callable[[], bool]
"""Reads what is there. True: done with it; False: the loop may have something to do now."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_READABLE = ~select.EPOLLOUT
_WRITABLE = ~select.EPOLLIN


class SwallowingSelector(selectors.BaseSelector):
    """An epoll selector.

    A descriptor has a key of asyncio's, a reader of ours, or (our reader, asyncio's writer) both.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._swallow: dict[int, Swallow] = {}
        self.on_fault: Callable[[Exception], None] = _raise
        """Takes a reader's exception: its caller gets no answer, all others are served."""

    # -- readers of ours --

    def swallow(self, fd: int, reader: Swallow) -> None:
        """Calls `reader` from now on when the descriptor has something to read."""
        before = self._mask(fd)
        self._swallow[fd] = reader
        self._apply(fd, before)

    def forget(self, fd: int) -> None:
        before = self._mask(fd)
        if self._swallow.pop(fd, None) is not None:
            self._apply(fd, before)

    # -- the selector that asyncio expects --

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _number(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        before = self._mask(fd)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        try:
            self._apply(fd, before)
        except OSError:
            del self._keys[fd]
            raise
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _number(fileobj)
        before = self._mask(fd)
        key = self._keys.pop(fd)
        self._apply(fd, before)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _number(fileobj)
        before = self._mask(fd)
        if fd not in self._keys:
            raise KeyError(f"{fd} is not registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._apply(fd, before)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The descriptors that are ready for asyncio.

        Returns early, and empty, if a direct reader left the loop something to do.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            ready: list[tuple[selectors.SelectorKey, int]] = []
            must_return = False
            try:
                events = self._epoll.poll(timeout)
            except InterruptedError:
                return ready
            for fd, event in events:
                reader = self._swallow.get(fd)
                if reader is not None and event & _READABLE:
                    try:
                        must_return = not reader() or must_return
                    except Exception as error:
                        self.on_fault(error)
                        must_return = True
                key = self._keys.get(fd)
                if key is not None and (wanted := _events(event) & key.events):
                    ready.append((key, wanted))
            if ready or must_return:
                return ready
            if end is not None:
                timeout = end - time.monotonic()
                if timeout <= 0:
                    return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_number(fileobj)]

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._swallow.clear()

    # -- epoll --

    def _mask(self, fd: int) -> int:
        key = self._keys.get(fd)
        events = (key.events if key is not None else 0) | (_READ if fd in self._swallow else 0)
        return (select.EPOLLIN if events & _READ else 0) | (
            select.EPOLLOUT if events & _WRITE else 0
        )

    def _apply(self, fd: int, before: int) -> None:
        now = self._mask(fd)
        if now == before:
            return
        if not before:
            self._epoll.register(fd, now)
        elif now:
            self._epoll.modify(fd, now)
        else:
            with contextlib.suppress(OSError):
                # closed before it was forgotten: the kernel has forgotten it too
                self._epoll.unregister(fd)


def _number(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _events(event: int) -> int:
    """Errors and hang-ups go to readers and writers alike.

    The standard library's selectors do the same.
    """
    return (_READ if event & _READABLE else 0) | (_WRITE if event & _WRITABLE else 0)


def _raise(error: Exception) -> None:
    raise error


def new_loop() -> tuple[asyncio.AbstractEventLoop, SwallowingSelector]:
    """A loop, and the selector in it."""
    selector = SwallowingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    selector.on_fault = lambda error: loop.call_exception_handler(
        {"message": "reading a packet", "exception": error}
    )
    return loop, selector
