"""Stripe's API as far as Checkout needs it, in the shapes of version 2026-10-28.endive.

A resource is one module that ends in a ``ROUTES`` tuple; ``registry`` lists the modules. Everything else here knows
no resource: forms, parameters, idempotency, expansion, lists, versions, webhooks.
"""
