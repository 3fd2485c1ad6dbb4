"""How a payment becomes access. The chapters, in the order of a purchase's life.

- ``checkout``: before the money moves: is there somebody to invite? Then a Checkout Session.
- ``events``: stored events become purchases recorded, payments taken back, and one flush.
- ``flush``: claim one row, deliver it, write the outcome, ask for the next.
- ``buyer``: what a buyer sees of it, and the correction of a username.
- ``operator``: what a person judges: send again, give a payment its owner, what needs a look.
- ``invitations``: once a day, whether an invitation that nobody took up has run out.
- ``forgetting``: who the buyer was is blanked; what was paid and delivered stays.

What is owed is told by the purchase's own row. Vendors are called outside any transaction; whatever they answer, or do
not answer, is a value.
"""
