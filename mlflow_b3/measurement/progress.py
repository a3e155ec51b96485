"""What a person sees while refits run: how many are done, how long it takes, what is known so far."""

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from tqdm import tqdm

#: Looking at what is known so far may take this share of the time.
SHARE = 0.01
SECONDS_BETWEEN_LOOKS = 2.0
#: In a file, such as the log of CI, a bar is a line each time.
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A bar with the refits done, the time left and the current estimate.

    Parameters
    ----------
    shown : bool or None
        None shows it on a terminal only.
    total : int
        Refits that are expected, before they are planned.
    """

    def __init__(self, shown: bool | None, total: int) -> None:
        hidden = None if shown is None else not shown
        self._live = sys.stderr.isatty()
        self._guess = total
        self._replayed = 0
        seconds = 0.1 if self._live else SECONDS_BETWEEN_LINES
        self._bar: tqdm[Any] = tqdm(
            total=total, desc="refits", unit="fit", disable=hidden, mininterval=seconds
        )
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def __enter__(self) -> Self:
        """Show the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._bar.close()

    def expect(self, total: int, *, final: bool = False) -> None:
        """Correct how many refits there will be; before the last of them are planned, upwards only."""
        self._guess = 0 if final else self._guess
        self._bar.total = max(total, self._bar.n, self._guess)
        if self._live:
            self._bar.refresh()

    def advance(self, count: int, replayed: int = 0) -> None:
        """Add refits that are done; of all so far, some were only read from a journal."""
        if self._bar.disable:
            return
        if replayed > self._replayed:  # they say nothing about the speed
            self._replayed = replayed
            self._bar.initial += count
            self._bar.set_postfix_str(f"{replayed} from the journal", refresh=False)
        self._bar.update(count)

    def look(self, estimate: Callable[[], str | None]) -> None:
        """Show what is known so far, now and then."""
        if self._bar.disable or time.monotonic() < self._next_look:
            return
        started = time.monotonic()
        told = estimate()
        if told is not None:
            self._bar.set_postfix_str(told, refresh=self._live)
        cost = time.monotonic() - started
        self._next_look = time.monotonic() + max(SECONDS_BETWEEN_LOOKS, cost / SHARE)
