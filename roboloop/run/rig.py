"""The verb rig: a simulated robot that stands by itself, as a real one does, and outlives whoever trains on it."""

from __future__ import annotations

from pathlib import Path

from roboloop.core.config import override, read_file
from roboloop.core.errors import ConfigError
from roboloop.core.flags import parse_flags
from roboloop.core.options import Options
from roboloop.core.stop import StopRequest
from roboloop.envs import registry
from roboloop.run.config import Experiment

PORT = 7317
"""Unless --port says otherwise: below those that the kernel hands out."""


def rig(args: list[str]) -> int:
    """Serve a rig on this machine until a signal ends it."""
    options = Options(prog="roboloop rig", allow_abbrev=False)
    options.add_argument("env", help="the rig, such as panda/reach")
    options.add_argument("--port", type=int, default=PORT, help=f"of 127.0.0.1, {PORT} unless given; 0 = any free one")
    options.add_argument("--config", type=Path, help="a file with config keys, such as env.panda.faults")
    options.epilog = "--env.panda.KEY VALUE sets a config key of the rig, such as --env.panda.watchdog-s 0.3"
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    if not 0 <= known.port < 1 << 16:
        raise ConfigError(f"--port must be from 0 to 65535, not {known.port}")
    rig_env = Experiment(env=registry.config(known.env))
    base = override(rig_env, read_file(known.config) if known.config else {})
    config = parse_flags(override(base, {"env": {"id": known.env}}), flags)
    with StopRequest() as stop:
        registry.serve_rig(config.env, known.port, stop)
    return 0
