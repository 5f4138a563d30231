"""Becomes ``roboloop`` after asking the kernel to end it with the process that started it: runs of a cluster do."""

from __future__ import annotations

import os
import sys

from roboloop.core.child import die_with


def main() -> None:
    """Take the parent's process id, then the words after ``roboloop``."""
    die_with(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "roboloop.cli", *sys.argv[2:]])


if __name__ == "__main__":
    main()
