"""`agentkit sandbox serve`: the sandboxes of this machine, for clients on others."""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio

from agentkit.cli.terminal import escape
from agentkit.errors import ConfigError
from agentkit.protocols import SandboxSpec
from agentkit.sandbox.config import sandbox_from

TOKEN_VARIABLE = "AGENTKIT_SANDBOX_TOKEN"
_NOTES = f"""\
Clients show one of the tokens in FILE (one a line, mode 600), or the one in ${TOKEN_VARIABLE}; what was started
with one token is not seen with another. A client that is not heard of for --orphan-s seconds loses its sandboxes.
SIGINT and SIGTERM close all of them.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Any:
    """The parser of `sandbox serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve the sandboxes of this machine to others",
        description="Serves sandboxes over HTTP, for `type: remote` elsewhere.",
        epilog=_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--type", default="bwrap", help="which sandboxes (default: bwrap)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of that type, as in YAML; may be repeated",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=8321, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the tokens of clients")
    parser.add_argument("--anonymous", action="store_true", help="no token, on a loopback address only")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="speak TLS, with this PEM certificate")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of the certificate")
    parser.add_argument(
        "--orphan-s", type=float, default=60.0, help="how long a client may be silent (default: %(default)s)"
    )
    parser.add_argument("--max-sandboxes", type=int, default=4096, help="of all clients (default: %(default)s)")
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="DIR",
        help="a directory of this machine that rootfs and read_only may name; may be repeated",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes.

    Raises:
        ConfigError: an option cannot work, or the address cannot be listened on.
        MissingExtraError: aiohttp is not installed.
    """
    anyio.run(_serve, args, backend="asyncio")
    return 0


async def _serve(args: argparse.Namespace) -> None:
    from agentkit_remote import SandboxServer, ServerPolicy  # with all it needs only where it is used
    from agentkit_remote.auth import token_of

    config = sandbox_from({"type": args.type, **options_of(args.set)}, path="sandbox")
    if config.spec != SandboxSpec():
        raise ConfigError("set holds options of the type; what a sandbox is like is up to the clients")
    given = None if args.token_file or args.anonymous else token_of(None, None)
    server = SandboxServer(
        config.backend,
        host=args.host,
        port=args.port,
        tokens=[given] if given else [],
        token_file=args.token_file,
        anonymous=args.anonymous,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        policy=ServerPolicy(
            orphan_s=args.orphan_s,
            max_sandboxes=args.max_sandboxes,
            share=tuple(map(os.path.abspath, args.share)),
        ),
    )
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with server:
            print(f"{escape(args.type)} sandboxes at {escape(server.url)}", flush=True)
            async for _ in signals:
                print(f"closing {server.sandboxes} sandboxes", flush=True)
                break


def options_of(pairs: list[str]) -> dict[str, object]:
    """What `--set` said: values are JSON, or else text.

    Raises:
        ConfigError: one is no KEY=VALUE.
    """
    options: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set takes KEY=VALUE, found {pair!r}")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options
