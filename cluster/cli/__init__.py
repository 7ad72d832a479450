"""What people type and see: commands, live table, summary.

Nobody imports this room. A command reads its arguments, hands over at once, and prints what comes
back; nothing is decided here. Ray and JAX are imported by the commands that need them, when they
do, so that `--help` and a refused configuration are there at once.
"""
