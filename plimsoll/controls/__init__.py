"""What we set and why: one module a layer, one record a setting."""
