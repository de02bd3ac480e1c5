"""Sandboxes of another machine: a server that runs any back end, and the back end that talks to it."""
