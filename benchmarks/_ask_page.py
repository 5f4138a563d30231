"""Everything that the page of ``roboloop dash`` asks its server for, without a socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any


async def page(root: Path) -> int:
    """Ask the page for everything about all runs of a folder; an answer that is an error of ours is a failure."""
    from roboloop.dash.guard import Pass
    from roboloop.dash.server import make_app

    app, entry = make_app([root], "token", 1, frozenset({"localhost:1"})), Pass("token", 1)
    headers = [(b"host", b"localhost:1"), (b"cookie", f"{entry.cookie_name}={entry.cookie_value}".encode())]

    async def ask(path: str, query: str = "") -> tuple[int, bytes]:
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": headers,
                 "query_string": query.encode(), "http_version": "1.1", "scheme": "http", "root_path": "",
                 "server": ("localhost", 1), "client": ("localhost", 2)}  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(1000)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    bad = 0
    code, body = await ask("/api/runs")
    runs = json.loads(body)["runs"] if code == 200 else []
    if not any(run["name"].startswith("beside") and run["state"] == "done" for run in runs):
        print(f"the sound run is not listed: {code} {runs}")
        bad = 1
    ids = ",".join(run["id"] for run in runs)
    asked = [("/api/keys", f"runs={ids}"), ("/api/diff", f"runs={ids}")]
    asked += [("/api/curves", f"runs={ids}&key=eval/return{by}") for by in ("", "&by=group", "&x=wall")]
    for run in runs:
        asked += [(f"/{what}/{run['id']}", "") for what in ("api/run", "api/log")]
        asked += [(f"/sheet/{run['id']}/dataset", ""), (f"/media/{run['id']}/videos/evaluation.mp4", "")]
    for path, query in asked:
        code, body = await ask(path, query)
        if code >= 500:
            print(f"{path}?{query}: {code} {body[:200]!r}")
            bad = 1
    return bad
