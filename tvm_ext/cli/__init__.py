"""The commands: one file per verb, run as `python -m tvm_ext.<verb>`. They parse and print; the
work is done by `tvm_ext.compile` and its like.

    common   arguments that verbs share, and `run_main`: errors, exit codes, --json
    interrupts  Ctrl-C, wherever it is pressed
    tune     measure plans into a log and compile the best    progress  shows how far it is
    compile  compile in seconds, measuring nothing
    replay   compile from a log, measuring and running nothing
    run      run an artifact, time it
    logs     show, best, picture: look into tuning logs
             logs_change  merge, prune, diff      logs_exchange  to and from MetaSchedule
    serve    lend this machine to a fleet, or be its tracker
    report   the kernels of an artifact

Exit codes: 0 done, 2 an error of the user's (one line on stderr), 130 interrupted, 141
nobody reads the output any more.
"""
