output "peers" {
  description = "This region's gateways, for `peers` of all other regions' variables and for `gateways` of the global ones."
  value       = module.gateways.peers
}

output "client_addresses" {
  description = "Addresses that the one name resolves to for this region's clients."
  value       = module.gateways.client_addresses
}

output "groups" {
  description = "By gateway, its auto scaling group, which leads to its machine."
  value       = module.gateways.groups
}

output "config_bucket" {
  description = "The bucket from which its machines read configuration and packages."
  value       = module.gateways.config_bucket
}
