"""A limit on the time of one refit, which a learner cannot swallow."""

import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

#: A refit that does not react within this many seconds beyond twice its time loses its process.
GRACE = 1.0


class RefitTimeout(BaseException):
    """A refit took too long; no `Exception`, which learners catch."""


@contextmanager
def time_limit(seconds: float | None, *, may_exit: bool = False) -> Iterator[None]:
    """Raise `RefitTimeout` here when the block takes longer.

    Parameters
    ----------
    seconds : float or None
        None sets no limit.
    may_exit : bool
        This is a worker process of ours: where foreign code does not come back to Python at all, it
        ends after twice the time, and the refits that it had are run again elsewhere.

    Notes
    -----
    In a main thread a signal interrupts also what waits, such as a sleep or a socket; in another one
    the exception comes with the next line of Python.
    """
    if seconds is None:
        yield
        return
    interrupt = _by_signal if _has_signal() else _by_thread
    if may_exit:
        faulthandler.dump_traceback_later(2 * seconds + GRACE, exit=True, file=_nowhere())
    try:
        with interrupt(seconds):
            yield
    finally:
        if may_exit:
            faulthandler.cancel_dump_traceback_later()


def _has_signal() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal wants it
        raise RefitTimeout

    before = signal.signal(signal.SIGALRM, stop)
    started = time.monotonic()
    # again each second, should somebody have swallowed it
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        with _whatever_comes_late():
            signal.setitimer(signal.ITIMER_REAL, 0)
        with _whatever_comes_late():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left:  # somebody else's alarm, which goes on where it was
                left = max(left - (time.monotonic() - started), 0.001)
                signal.setitimer(signal.ITIMER_REAL, left, again)


def _whatever_comes_late() -> AbstractContextManager[None]:
    """Take no notice of a limit that is reached on the way out."""
    return suppress(RefitTimeout)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    raised = ctypes.py_object(RefitTimeout)
    over = threading.Event()

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, raised)
            wait = 1.0

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with _whatever_comes_late():
            over.set()
        with _whatever_comes_late():
            over.set()
            watcher.join()


_NOWHERE: list[int] = []


def _nowhere() -> int:
    """Return a file that nobody reads, opened once."""
    if not _NOWHERE:
        _NOWHERE.append(os.open(os.devnull, os.O_WRONLY))
    return _NOWHERE[0]
