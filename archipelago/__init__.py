"""Archipelago.

Modules:

    __main__  `python -m archipelago` is `archipelago`
"""
