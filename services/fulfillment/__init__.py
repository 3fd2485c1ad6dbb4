"""Fulfillment: a paid purchase becomes one GitHub invitation and one mail. Nothing of it is re-exported."""
