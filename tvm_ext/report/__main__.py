"""`python -m tvm_ext.report model.so`: the command in `tvm_ext.cli.report`."""

from tvm_ext.command import run_command

run_command("report")
