"""Sandboxes that SWE-ReX starts."""
