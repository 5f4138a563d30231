"""The verb ``dash``."""

from __future__ import annotations

import importlib.util
import ipaddress
import secrets
import socket
import threading
from pathlib import Path

from roboloop.core.errors import ConfigError
from roboloop.core.options import Options


def dash(args: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    options = Options(prog="roboloop dash", allow_abbrev=False)
    options.add_argument("roots", nargs="*", type=Path, metavar="RUNS_DIR", help="directories of runs (runs)")
    options.add_argument("--port", type=int, default=0, help="0: any that is free")
    options.add_argument("--host", default="127.0.0.1", help="address to listen at")
    options.add_argument("--listen-anywhere", action="store_true", help="allow a --host that others can reach")
    options.add_argument("--open", action="store_true", help="open the page in a browser")
    known = options.parse_args(args)
    roots = known.roots or [Path("runs")]
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"dash: {root} is no directory")
    if not 0 <= known.port <= 65535:
        raise ConfigError(f"dash: --port is from 0 to 65535, not {known.port}")
    if not is_loopback(known.host) and not known.listen_anywhere:
        raise ConfigError(
            f"dash: others could reach {known.host}, and the page goes over plain HTTP; "
            "an SSH tunnel to 127.0.0.1 is safer, --listen-anywhere allows it"
        )
    for needed in ("uvicorn", "starlette", "msgspec"):
        if importlib.util.find_spec(needed) is None:
            raise ConfigError(f"dash needs {needed}: pip install 'roboloop[dash]'")
    listening = listen(known.host, known.port)
    port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
    # behind '#', so that it is in no request, no log and no referrer
    url = f"http://{in_url(known.host)}:{port}/#token={token}"
    print(f"{url}\nCtrl-C ends the page; runs go on", flush=True)
    if known.open:
        import webbrowser

        webbrowser.open(url)
    # only now what takes long to load: a browser starts meanwhile, and waits at the socket
    from roboloop.dash.connections import make_server
    from roboloop.dash.series import Logs
    from roboloop.dash.server import make_app, read_in_background

    logs, ended = Logs(), threading.Event()
    app = make_app(roots, token, port, host_names(known.host, port), logs)
    read_in_background(logs, ended)
    try:
        make_server(app).run(sockets=[listening])
    finally:
        ended.set()
    return 0


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(host: str, port: int) -> frozenset[str]:
    """Return the names, with port, under which the page is served; ``*`` stands for any address, but no other name."""
    own = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", in_url(host))}
    if is_loopback(host):
        return frozenset(own)
    return frozenset(own | {f"{socket.gethostname()}:{port}", "*"})


def in_url(host: str) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections from now on."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # before the address is printed: whoever reads it may come at once
    except (OSError, UnicodeError) as error:  # the latter of what is no name of a host
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"dash: cannot listen at {host} port {port} ({why})") from None
    return listening
