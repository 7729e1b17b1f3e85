"""`python -m tvm_ext.serve`: lend this machine to a fleet, or start the tracker of one."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import warnings
from collections.abc import Sequence

from tvm_ext.cli.common import Answer, CommandError, Parser, positive, run_main

LOOPBACK = "127.0.0.1"
SERVER_PORT, TRACKER_PORT = 9090, 9190


def make_parser() -> Parser:
    """The command's arguments."""
    prog = "python -m tvm_ext.serve"
    parser = Parser(
        prog=prog,
        description="Lend this machine to those who tune for its kind: whoever asks the tracker\n"
        "for the key sends kernels, which run here. Ctrl-C ends it. It is reached from this\n"
        "machine alone unless --host says otherwise; who reaches it can run any program.",
        example=f"{prog} --start-tracker --host 0.0.0.0\n"
        f"  {prog} --tracker 192.168.1.5:9190 --key pi4 --host 0.0.0.0",
    )
    parser.add_argument("--tracker", metavar="HOST:PORT", help="tracker that lends this machine")
    parser.add_argument("--key", help="what this machine is, one word: equal machines share it")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads of kernels (all physical cores)"
    )
    parser.add_argument("--start-tracker", action="store_true", help="be the tracker instead")
    parser.add_argument(
        "--host", default=LOOPBACK, help=f"address to listen at ({LOOPBACK}; 0.0.0.0 for all)"
    )
    parser.add_argument(
        "--port", type=_port, help=f"port ({SERVER_PORT}; tracker {TRACKER_PORT}; 0 for any free)"
    )
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Serves until interrupted."""
    if args.start_tracker:
        if args.tracker or args.key or args.threads:
            raise CommandError("--start-tracker: takes --host and --port alone; drop the others")
        return _tracker(args)
    if not args.tracker or not args.key:
        raise CommandError(
            "tracker: no --tracker and --key given; give both, or --start-tracker to start one"
        )
    if not args.key.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise CommandError(f"--key {args.key!r}: is no word of letters, digits, '-', '_', '.'")
    return _device(args)


def _tracker(args: argparse.Namespace) -> Answer:
    from tvm_ext.measure.device import serve_tracker

    with _listen(args.host, args.port, TRACKER_PORT) as listener:
        _say(f"tracker at {_address(listener)}; Ctrl-C ends it")
        serve_tracker(listener)
    return Answer("tracker ended", {})


def _device(args: argparse.Namespace) -> Answer:
    from tvm_ext.hardware.system import physical_cores

    threads = args.threads or physical_cores()
    # TVM and numpy read these once, when they are imported.
    os.environ.update(TVM_NUM_THREADS=str(threads), TVM_BIND_THREADS="1", OPENBLAS_NUM_THREADS="1")
    from tvm_ext.measure.device import serve_device
    from tvm_ext.measure.tracker import check_tracker

    check_tracker(args.tracker)
    with _listen(args.host, args.port, SERVER_PORT) as listener:
        where = f"{_address(listener)}, tracker {args.tracker}"
        _say(f"key {args.key}, {threads} threads at {where}; Ctrl-C ends it")
        serve_device(listener, args.tracker, args.key, _say)
    return Answer("server ended", {})


def _listen(host: str, port: int | None, default: int) -> socket.socket:
    """A listening socket. Raises CommandError; warns where others can reach it."""
    port = default if port is None else port
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise CommandError(
            f"address {host}:{port}: cannot listen there ({error.strerror or error}); "
            "give another --port, or an address of this machine as --host"
        ) from error
    if not host.startswith("127.") and host != "localhost":
        warnings.warn(
            f"listening at {host}: TVM's RPC runs any code it is sent, without a password; "
            "do this only on a network where you trust everybody",
            stacklevel=1,
        )
    return listener


def _address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname()[:2])


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
