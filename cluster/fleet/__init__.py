"""Who keeps a run: which islands shall be there, on which devices, and what is done when they fail.

`launch` and `bench` come in. `reconcile` decides and is pure; `controller` looks, asks it, and does
what it says over Ray.
"""
