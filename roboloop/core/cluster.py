"""Ray, the cluster that workers and runs are placed in beyond one machine (extra: ray).

Ray moves what it is given by a serialiser of its own, between processes that trust each other. We give it plain values
and arrays only, and nothing that it moved is ever loaded from a file.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from roboloop.core.child import places_of_modules
from roboloop.core.errors import ConfigError, needs_extra
from roboloop.core.resources import usable_cores

SCHEME = "ray://"
LOOPBACK = "127.0.0.1"
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where this is 0 before Ray is imported, Ray looks for a cluster on loopback there, and not at the outer address."""
AUTH_MODE = "RAY_AUTH_MODE"
_REACH_S = 5.0
_STORE_BYTES = 200_000_000


def connect(address: str, num_cpus: float = 0.0) -> tuple[ModuleType, bool]:
    """Return Ray, connected, and whether the connection is ours to end.

    Without an address that is $RAY_ADDRESS, or else a cluster of this machine alone, made with at least so many CPUs.
    """
    head = (address or os.environ.get("RAY_ADDRESS", "")).removeprefix(SCHEME)
    if not head or _check_reachable(head) == LOOPBACK:
        os.environ.setdefault(LOOPBACK_ONLY, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if AUTH_MODE not in os.environ:
        _choose_token(is_own=not head)
    with needs_extra("Ray", ("ray",), "ray"):
        import ray
    if ray.is_initialized():
        return ray, False
    # workers look for modules where we do: Ray would have them look into our working directory first. It puts each
    # folder before those that it has put there already
    found = ray.job_config.JobConfig(_client_job=True, _py_driver_sys_path=places_of_modules()[::-1])
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    quiet |= {"job_config": found}
    if not head:
        cpus = max(math.ceil(usable_cores()), math.ceil(num_cpus))
        own: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        ray.init(address="local", _node_ip_address=LOOPBACK, **own, **quiet)
        return ray, True
    try:
        ray.init(address=head, **quiet)
    except (RuntimeError, ConnectionError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"cannot join the Ray cluster at {head}: {why} (this machine must be a node of it: "
            f"ray start --address={head} --num-cpus=0; and all need the same token, or none: ray get-auth-token)"
        ) from None
    return ray, True


def _choose_token(is_own: bool) -> None:
    """Ask for a token as ``ray start`` does, where there is one; Ray looks when it is imported, and not at joining.

    A cluster of our own has one of its own: Ray would leave its in ~/.ray, where every later ``ray start`` finds it.
    """
    places = (os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray" / "auth_token")
    has_one = bool(os.environ.get("RAY_AUTH_TOKEN")) or any(place and Path(place).is_file() for place in places)
    if is_own and not has_one:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if is_own or has_one:
        os.environ[AUTH_MODE] = "token"


def machines(ray: Any) -> list[dict[str, float]]:
    """Return the resources of each machine of the cluster that lives."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room_for(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """Return how many jobs with these requirements fit; a job cannot span machines."""
    return sum(min(int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items()) for has in nodes)


def telling_line(error: Exception) -> str:
    """Return the line of what Ray says of an error that says most: the last exception, or else how a process died."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b.*:", line)]
    deaths = [line for line in lines if "died" in line or "killed" in line]
    return [*exceptions[-1:], *deaths, *lines, type(error).__name__][0]


def _check_reachable(head: str) -> str:
    """Return the host; refuse an address where nobody listens, before Ray waits for it for minutes."""
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"a Ray cluster is given as ray://HOST:PORT, as ray start --head prints it, not {head!r}")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, UnicodeError) as error:  # the latter of what is no name of a host
        why = getattr(error, "strerror", None) or "no answer"
        raise ConfigError(f"no Ray cluster at {head} ({why}): ray start --head --port={port} begins one") from None
    return host
