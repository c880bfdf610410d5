"""Consumer groups: members, subscriptions, offsets, locks and assignments."""
