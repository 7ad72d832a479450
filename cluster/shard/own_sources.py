"""Digests of the user's code on which a replay depends: the merge rule, and the codecs.

A run that starts writes them into its configuration. A shard, a resumed run, a replay and an export
refuse another source: the model that it makes would be another one.
"""

from __future__ import annotations

import hashlib

from cluster.config.schema import Config
from cluster.config.values import MERGE_RULES
from cluster.source import target_sha256


def with_sources(config: Config) -> Config:
    """Return the configuration with the digests of the user's code; one that is there stays."""
    found = {key: sha256 or None for key, (_, sha256) in _digests(config).items()}
    stated = {key: getattr(config.sync, key) or sha256 for key, sha256 in found.items()}
    if not stated:
        return config
    return config.model_copy(update={"sync": config.sync.model_copy(update=stated)})


def source_problems(config: Config) -> list[str]:
    """Return which of the user's code is not that of the run; empty if none is stated."""
    stated = {key: getattr(config.sync, key) for key in ("merge_sha256", "wire_sha256")}
    if not any(stated.values()):
        return []
    return [
        f"{named}: its source is {found or 'gone'}, and sync.{key} is {stated[key]}: put its files "
        "back; for changed code start a new run, which may take the model of this one "
        '(task.init_from = "run:NAME")'
        for key, (named, found) in _digests(config).items()
        if stated[key] is not None and stated[key] != found
    ]


def _digests(config: Config) -> dict[str, tuple[str, str]]:
    """Return each key of a digest with the name of the code, and its digest now."""
    sync, found = config.sync, dict[str, tuple[str, str]]()
    if sync.merge not in MERGE_RULES:
        found["merge_sha256"] = f'sync.merge = "{sync.merge}"', target_sha256(sync.merge)
    if codecs := config.codecs:
        each = {target: target_sha256(target) for target in codecs.values()}
        named = " and ".join(f'{key} = "{target}"' for key, target in codecs.items())
        text = " ".join(each.values())
        whole = hashlib.sha256(text.encode()).hexdigest()[:16] if len(each) > 1 else text
        found["wire_sha256"] = named, whole if all(each.values()) else ""
    return found
