"""`python -m tvm_ext.serve`: the command in `tvm_ext.cli.serve`. Nothing may import this."""

if __name__ == "__main__":
    from tvm_ext.command import run_command

    run_command("serve")

raise ImportError("tvm_ext.serve is a command: run python -m tvm_ext.serve")
