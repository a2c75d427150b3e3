"""Interventions with a round axis: sites, patching, interchange, steering, ablation, attribution."""
