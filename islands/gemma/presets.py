"""The presets of Gemma models: small ones for bytes, and the published shapes.

Sources of the published shapes: google-deepmind/gemma (`gm/nn`) and the configurations in
transformers. The small ones have the pattern and the conventions of Gemma 3, or those of Gemma 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from islands.gemma.spec import GemmaSpec

CONFIG_SUFFIX = ".json"
"""The end of a `task.preset` that is a configuration of transformers."""
TASK = "islands.gemma.language_task:load"
"""The function of the task of a preset; `islands.task` imports it by name, as it imports that."""
PUBLISHED_VOCABULARY = 262_144

GEMMA_3 = GemmaSpec(
    generation=3,
    vocabulary=PUBLISHED_VOCABULARY,
    head_size=256,
    window=1024,
    pattern="LLLLLG",
    global_rope_scale=8.0,
)
GEMMA_4 = GemmaSpec(
    generation=4,
    vocabulary=PUBLISHED_VOCABULARY,
    head_size=256,
    global_head_size=512,
    pattern="LLLLLG",
    global_rope_share=0.25,
    softcap=30.0,
)
SMALL = GemmaSpec(vocabulary=256, pattern="LLLLLG", window=64)

PRESETS: Mapping[str, GemmaSpec] = {
    "gemma-0.1m": replace(SMALL, width=48, layers=3, pattern="LLG", hidden=128, heads=3, kv_heads=1,
                          head_size=16, window=32),
    "gemma-1m": replace(SMALL, width=128, layers=6, hidden=320, heads=4, kv_heads=2, head_size=32),
    "gemma-10m": replace(SMALL, width=320, layers=12, hidden=640, heads=5, kv_heads=1,
                         head_size=64, window=128),
    "gemma-50m": replace(SMALL, width=640, layers=12, hidden=1792, heads=10, kv_heads=2,
                         head_size=64, window=256),
    "gemma-150m": replace(SMALL, width=1024, layers=18, hidden=2048, heads=8, kv_heads=2,
                          head_size=128, window=512),
    "gemma-400m": replace(SMALL, width=1536, layers=18, hidden=3584, heads=12, kv_heads=4,
                          head_size=128, window=512),
    "gemma-1b": replace(SMALL, width=2048, layers=24, hidden=5120, heads=16, kv_heads=4,
                        head_size=128, window=1024),
    "gemma-moe-1m": replace(SMALL, generation=4, width=64, layers=6, hidden=96, heads=4, kv_heads=2,
                            head_size=16, global_head_size=32, global_kv_heads=1,
                            keys_are_values=True, global_rope_share=0.25, softcap=30.0, experts=8,
                            experts_used=2, expert_hidden=96),
    "gemma-moe-50m": replace(SMALL, generation=4, width=384, layers=12, hidden=512, heads=6,
                             kv_heads=2, head_size=64, global_head_size=128, global_kv_heads=1,
                             keys_are_values=True, global_rope_share=0.25, softcap=30.0,
                             window=256, experts=16, experts_used=2, expert_hidden=192),
    "gemma-3-270m": replace(GEMMA_3, width=640, layers=18, hidden=2048, heads=4, kv_heads=1,
                            window=512, global_rope_scale=1.0),
    "gemma-3-1b": replace(GEMMA_3, width=1152, layers=26, hidden=6912, heads=4, kv_heads=1,
                          window=512, global_rope_scale=1.0),
    "gemma-3-4b": replace(GEMMA_3, width=2560, layers=34, hidden=10_240, heads=8, kv_heads=4),
    "gemma-3-12b": replace(GEMMA_3, width=3840, layers=48, hidden=15_360, heads=16, kv_heads=8),
    "gemma-3-27b": replace(GEMMA_3, width=5376, layers=62, hidden=21_504, heads=32, kv_heads=16,
                           head_size=128, query_scalar=168.0),
    "gemma-4-e2b": replace(GEMMA_4, width=1536, layers=35, hidden=6144, heads=8, kv_heads=1,
                           window=512, pattern="LLLLG", per_layer_size=256, shared_kv_layers=20,
                           wide_shared=True),
    "gemma-4-e4b": replace(GEMMA_4, width=2560, layers=42, hidden=10_240, heads=8, kv_heads=2,
                           window=512, per_layer_size=256, shared_kv_layers=18),
    "gemma-4-26b-a4b": replace(GEMMA_4, width=2816, layers=30, hidden=2112, heads=16, kv_heads=8,
                               global_kv_heads=2, window=1024, keys_are_values=True, experts=128,
                               experts_used=8, expert_hidden=704),
    "gemma-4-31b": replace(GEMMA_4, width=5376, layers=60, hidden=21_504, heads=32, kv_heads=16,
                           global_kv_heads=4, window=1024, keys_are_values=True),
}  # fmt: skip
"""The presets, small ones first."""


def is_gemma(preset: str) -> bool:
    """Return whether a `task.preset` is meant for this package: a preset of it, or a file."""
    return preset.startswith("gemma") or preset.endswith(CONFIG_SUFFIX)
