"""How the world asks: senders over HTTP (``webhooks``), operators at the command line (``commands``)."""
