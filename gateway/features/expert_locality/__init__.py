"""Expert locality of disaggregated pools, outside the core."""
