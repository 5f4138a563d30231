"""The version of this package; a file of its own, so that reading it imports nothing."""

VERSION = "0.1.0"
