"""Fair sharing between tenants: the order of the queues, and what each tenant was served."""
