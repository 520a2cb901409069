"""Where jobs can be launched. A module of this package with a `TARGET` is one; see docs/extending.md."""
