"""Serving: a model is admitted, started, proved ready, stopped until its memory is back, and explained when it ends."""
