"""What is on disk or in a bucket: tape, snapshots, fragments, the run directory, who owns it.

Everybody above may come in. Every file says what run it belongs to and carries a checksum; a
damaged one is refused with the place and the reason. Names and formats are a contract.
"""
