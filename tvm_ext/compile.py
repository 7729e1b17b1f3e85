"""`python -m tvm_ext.compile`: the command in `tvm_ext.cli.compile`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("compile", guarded=True)

raise ImportError(
    "tvm_ext.compile as a module is a command: for the function, from tvm_ext import compile"
)
