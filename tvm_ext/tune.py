"""`python -m tvm_ext.tune`: the command in `tvm_ext.cli.tune`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("tune")

raise ImportError(
    "tvm_ext.tune as a module is a command: for the function, from tvm_ext import tune"
)
