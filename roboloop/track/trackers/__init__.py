"""Trackers mirror the metric log in other viewers: the protocol, the table, ours, and the thread of each."""
