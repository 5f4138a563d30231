"""A plug-in that is broken."""

raise RuntimeError("no licence was found")
