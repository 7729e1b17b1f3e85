"""`python -m tvm_ext.replay`: the command in `tvm_ext.cli.replay`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("replay")

raise ImportError(
    "tvm_ext.replay as a module is a command: for the function, from tvm_ext import replay"
)
