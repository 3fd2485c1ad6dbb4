"""One module per resource; each ends in its ``ROUTES``."""
