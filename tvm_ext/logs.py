"""`python -m tvm_ext.logs`: the command in `tvm_ext.cli.logs`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("logs")

raise ImportError("tvm_ext.logs is a command: run python -m tvm_ext.logs")
