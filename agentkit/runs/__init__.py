"""A whole run: what is asked, by whom it is answered, and what is kept."""
