"""Adapters to vendors that more than one slice speaks to. Only gateways and ``services.__main__`` import them."""
