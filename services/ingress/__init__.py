"""Where signed events come in: verified on their bytes, stored once, answered after the commit."""
