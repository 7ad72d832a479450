"""The processes of a run, as actors of Ray around the plain classes of the rooms below.

`fleet`, `launch` and `bench` come in. All that knows that there is Ray is here and with them: a
typed handle for each untyped one, errors told apart by type, nothing retried by Ray.
"""
