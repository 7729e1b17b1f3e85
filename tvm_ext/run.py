"""`python -m tvm_ext.run`: the command in `tvm_ext.cli.run`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("run")

raise ImportError("tvm_ext.run is a command: run python -m tvm_ext.run")
