"""Named axes, specs, and the arithmetic from them to slices."""
