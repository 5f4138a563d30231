"""A tracker that keeps the metrics of all runs in one SQLite file, to be asked with SQL.

roboloop train reach --trackers tensorboard sqlite
sqlite3 runs/metrics.sqlite "SELECT run, max(value) FROM metrics WHERE name = 'eval/success' GROUP BY run"
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from roboloop.track.trackers.tracker import TrackedRun


class SQLite:
    """One row for each number of each row of the log."""

    def open(self, run: TrackedRun) -> None:
        """Begin a run, or a resumed one anew: all rows of its log follow."""
        self.run = run.name
        # waits for trackers of other runs that write to the same file
        self.file = sqlite3.connect(Path(run.config["runs_dir"]) / "metrics.sqlite", timeout=60)
        with self.file:
            self.file.execute("CREATE TABLE IF NOT EXISTS metrics (run TEXT, step INTEGER, name TEXT, value REAL)")
            self.file.execute("DELETE FROM metrics WHERE run = ?", (self.run,))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Add a row of the log."""
        with self.file:  # a transaction
            rows = [(self.run, step, name, value) for name, value in row.items()]
            self.file.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
