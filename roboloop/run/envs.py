"""The verb ``envs``: list environment ids, check one, compare engines; and the check that training begins with."""

from __future__ import annotations

import sys

from roboloop.core.errors import ConfigError, UserError, nearest
from roboloop.core.flags import parse_flags
from roboloop.core.options import Options
from roboloop.core.text import printable
from roboloop.envs.config import EnvConfig
from roboloop.run.config import Experiment

USAGE = """\
usage: roboloop envs                                 list environment ids
       roboloop envs check ID [--env.KEY VALUE ...]  check an environment, your own or ours
       roboloop envs match ROBOT ENGINE [...]        compare a robot in several engines"""


def envs(args: list[str]) -> int:
    """List environment ids, check an environment, or compare engines."""
    if not args:
        from roboloop.envs.registry import known_ids

        print("\n".join(known_ids()))
        return 0
    if args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if args[0] == "check":
        return _check(args[1:])
    if args[0] == "match":
        from roboloop.run.match import match_engines

        return match_engines(args[1:])
    raise ConfigError(f"envs: unknown command {args[0]!r}{nearest(args[0], ['check', 'match'])}")


def _check(args: list[str]) -> int:
    """Print one line per problem; errors give exit code 2, warnings do not."""
    options = Options(prog="roboloop envs check", allow_abbrev=False)
    options.add_argument("id", help="such as gym/my_package:MyEnv, a class, or an id that the module registers")
    options.add_argument("--steps", type=int, default=1000, help="steps to play with random actions")
    options.epilog = "--env.KEY VALUE changes a config key of the environment; give the id first."
    known, flags = options.parse_known_args(args)
    if flags and not flags[0].startswith("--env."):
        options.error(f"unrecognized arguments: {flags[0]}")
    if known.steps < 1:
        raise ConfigError(f"envs check: --steps must be at least 1, not {known.steps}")
    cfg = parse_flags(Experiment(env=EnvConfig(id=known.id)), flags).env
    cfg.check()
    if moves_a_robot(cfg):
        raise ConfigError(f"envs check acts at random: {cfg.id} may be a robot, so it is not checked")
    from roboloop.envs.diagnose import examine
    from roboloop.envs.findings import Findings

    found = Findings(lambda finding: print(printable(finding), flush=True))
    facts = examine(cfg, found, known.steps)
    if found.errors:
        return UserError.exit_code
    print(f"ok: {printable(cfg.id)}: {facts}")
    return 0


def moves_a_robot(cfg: EnvConfig) -> bool:
    """Say whether actions may move something that is no simulation."""
    return bool(cfg.robot_address) or cfg.on_wall_clock


def check_before_training(cfg: Experiment) -> None:
    """Take a few steps in an environment of its own: refuse one that is broken, and warn of what training can bear."""
    if moves_a_robot(cfg.env) or cfg.sample.real_time != "off":
        return
    from roboloop.envs.diagnose import first_look
    from roboloop.envs.findings import Findings

    found = Findings()
    first_look(cfg.env, found)
    more = f"roboloop envs check {cfg.env.id}"
    for finding in found.all:
        if finding.refuses:
            raise ConfigError(f"env {cfg.env.id!r} is broken: {finding.text} (more: {more})")
    for finding in found.all:
        print(f"roboloop: warning: env {printable(cfg.env.id)!r}: {printable(finding.text)}", file=sys.stderr)
