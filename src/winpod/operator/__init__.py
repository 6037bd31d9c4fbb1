"""The operator: RuntimeClasses and node labels, pod admission, Windows upgrades, dashboard."""
