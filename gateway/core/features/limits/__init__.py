"""Tenants' limits, kept jointly by gateways that share no store."""
