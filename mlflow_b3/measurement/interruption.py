"""Ctrl-C while refits run: heard where it does no harm."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Interruption:
    """Holds the first Ctrl-C back while outcomes are put together; a second one passes at once.

    Only the main thread hears of Ctrl-C; elsewhere this does nothing.

    Attributes
    ----------
    pending : bool
        Ctrl-C came and has been held back.
    """

    def __init__(self) -> None:
        self.pending = False
        self._busy = False
        self._before: Any = None
        self._ours = False

    def __enter__(self) -> Self:
        """Listen."""
        self._before = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        if main and self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to whoever listened before."""
        if self._ours:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as signal wants it
        if self._busy and not self.pending:
            self.pending = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold Ctrl-C back during the block, and leave what to make of it to the caller."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Hold Ctrl-C back until the block is done."""
        with self.held():
            yield
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt
