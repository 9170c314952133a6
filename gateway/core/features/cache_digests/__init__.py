"""Cache digests: gateways tell each other which prompt prefixes their replicas hold."""
