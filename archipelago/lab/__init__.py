"""The laboratory: what simulates, checks, studies, plans and measures runs, and is part of none."""
