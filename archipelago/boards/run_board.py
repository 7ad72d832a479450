"""The board of one run: is my run all right?"""

from __future__ import annotations

from archipelago.boards.panels import ISLANDS, RUN, Board, Panel, Query

RUN_BOARD = Board(
    uid="archipelago",
    title="is my run all right?",
    description="Loss, progress and islands of one run, and whether its model and files are sound.",
    groups=True,
    panels=[
        Panel(
            "Held-out loss",
            "The loss of the syncer's model, in nats per token. It should fall.",
            [Query(f"archipelago_heldout_loss_nats{RUN}")],
            kind="stat",
        ),
        Panel(
            "Progress",
            "The share of the syncer steps that are done.",
            [Query(f"archipelago_syncer_step{RUN} / archipelago_syncer_steps_wanted{RUN}")],
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            "Islands alive, of those wanted",
            "Below 1, some islands wait for devices, start or were lost; see their states below.",
            [Query(f"archipelago_islands_alive{RUN} / archipelago_islands_wanted{RUN}")],
            unit="percentunit",
            kind="stat",
            bad_below=1.0,
        ),
        Panel(
            "Since the last merge",
            "If this is longer than a few rounds, fewer islands than the quorum take part.",
            [Query(f"archipelago_merge_age_seconds{RUN}")],
            unit="s",
            kind="stat",
        ),
        Panel(
            "Goodput",
            "The share of the islands' time in which their devices compute.",
            [Query(f"archipelago_goodput_ratio{RUN}")],
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            "Alerts of the fleet",
            "Problems that need a person. `archipelago status` names them.",
            [Query(f"archipelago_alerts{RUN}")],
            kind="stat",
            bad_above=1.0,
        ),
        Panel(
            "Held-out loss and expected loss",
            "The loss of the syncer's model beside the loss that monitor.expected names, with its "
            "band. Without monitor.expected there is only the loss. Regions with data of their own "
            "have one line each.",
            [
                Query(f"archipelago_heldout_loss_nats{RUN}", "held-out"),
                Query(f"archipelago_region_heldout_loss_nats{RUN}", "region {{region}}"),
                Query(f"archipelago_expected_loss_nats{RUN}", "expected"),
                Query(f"archipelago_expected_loss_low_nats{RUN}", "band, low"),
                Query(f"archipelago_expected_loss_high_nats{RUN}", "band, high"),
            ],
        ),
        Panel(
            "Training loss of each island",
            "The loss of the last step. An island whose loss differs from all others has other "
            "data or another defect.",
            [Query(f"archipelago_island_loss_nats{ISLANDS}", "{{island}}")],
        ),
        Panel(
            "Metrics of the training loss",
            "The metrics that the task's loss returns, of the last step of each island. A loss "
            "without metrics leaves this panel empty.",
            [Query(f"archipelago_island_loss_metric{ISLANDS}", "{{island}} {{name}}")],
        ),
        Panel(
            "Tokens per second",
            "The fate of the trained tokens: merged into the model, discarded, or lost with an "
            "island.",
            [
                Query(f"rate(archipelago_tokens_trained_total{RUN}[1m])", "trained"),
                Query(f"rate(archipelago_tokens_merged_total{RUN}[1m])", "merged"),
                Query(f"rate(archipelago_tokens_discarded_total{RUN}[1m])", "discarded"),
                Query(f"rate(archipelago_tokens_lost_total{RUN}[1m])", "lost"),
            ],
        ),
        Panel(
            "State of the islands",
            "One line for each island, with the state that it is in.",
            [Query(f"archipelago_island_state{ISLANDS} == 1", "{{island}} {{state}}")],
        ),
        Panel(
            "Soundness of model and files",
            "Model sound: 0 if the held-out loss is not finite, or the last step of a fragment was "
            "undone. Not durable: 1 while writes are refused. Damage: 1 if a file could not be "
            "used at a restart. Inside band: 0 while the loss is not as expected.",
            [
                Query(f"archipelago_model_sound{RUN}", "model sound"),
                Query(f"archipelago_not_durable{RUN}", "not durable"),
                Query(f"archipelago_restore_damage{RUN}", "damage"),
                Query(f"archipelago_loss_inside_band{RUN}", "inside band"),
            ],
        ),
        Panel(
            "Loss spikes",
            "Training losses of an island that are six deviations above its last 128 steps. A few "
            "in a long run are usual.",
            [
                Query(f"increase(archipelago_loss_spikes_total{RUN}[5m])", "all islands"),
                Query(
                    f"increase(archipelago_island_loss_spikes_total{ISLANDS}[5m]) > 0", "{{island}}"
                ),
            ],
        ),
        Panel(
            "Versions",
            "The versions of Archipelago, Python, Ray and JAX on the node of the fleet.",
            [Query(f"archipelago_build_info{RUN}")],
            kind="table",
        ),
    ],
)
"""The board of one run."""
