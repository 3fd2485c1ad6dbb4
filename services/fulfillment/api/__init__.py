"""How the world asks: buyers and operators over HTTP (``routes``), operators at the command line (``commands``)."""
