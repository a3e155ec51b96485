"""What tests need to know of journals: how many refits one has, also while an audit writes to it."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path


def count_refits(journal):
    """Return how many finished refits a journal has; the audit that runs keeps it locked, so copy it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        try:
            for end in ("", "-wal"):
                if Path(f"{journal}{end}").exists():
                    shutil.copy(f"{journal}{end}", f"{copy}{end}")
            with closing(sqlite3.connect(copy)) as connection:
                rows = connection.execute("SELECT count(validation) FROM outcomes")
                return rows.fetchone()[0]
        except (OSError, sqlite3.Error):  # not there yet, or copied while it was being written
            return 0


def change_journal(journal, statement):
    """Run SQL in a journal that no audit has open."""
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute(statement)
